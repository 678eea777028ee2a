// Working memory of a call.
#ifndef TWML_CUDA_WORKSPACE_H_
#define TWML_CUDA_WORKSPACE_H_

#include "cc/cuda/platform.h"
#include "cc/cuda/twml_cuda.h"

namespace twml::cuda {

class Workspace {
 public:
  explicit Workspace(const TwmlCudaCall& call) : call_(call) {}

  // Memory for n items, or null. Whether all allocations have succeeded is in `ok`.
  template <class T>
  T* Allocate(int64_t n) {
    const size_t bytes = static_cast<size_t>(n < 1 ? 1 : n) * sizeof(T);
    void* memory = call_.allocate(call_.user, bytes);
    if (memory == nullptr) ok_ = false;
    return static_cast<T*>(memory);
  }
  bool ok() const { return ok_; }

 private:
  const TwmlCudaCall& call_;
  bool ok_ = true;
};

inline cudaStream_t StreamOf(const TwmlCudaCall& call) {
  return static_cast<cudaStream_t>(call.stream);
}

}  // namespace twml::cuda

#define TWML_CUDA_RETURN_IF_ERROR(expression)                                        \
  do {                                                                               \
    if (const int failed = static_cast<int>(expression); failed != 0) return failed; \
  } while (false)

#endif  // TWML_CUDA_WORKSPACE_H_
