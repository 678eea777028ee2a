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

// The return code of a call of CUDA. Its error must be read, or the next function that asks for the
// last error would return it.
inline int CodeOf(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return static_cast<int>(error);
}

}  // namespace twml::cuda

#define TWML_CUDA_RETURN_IF_ERROR(code)                        \
  do {                                                         \
    if (const int failed = (code); failed != 0) return failed; \
  } while (false)

// Queues a kernel. Returns from the function if that fails, because kernels that are queued later
// would work on memory that this one has not written.
#define TWML_LAUNCH(kernel, grid, threads, stream, ...)                  \
  do {                                                                   \
    TWML_QUEUE_KERNEL(kernel, grid, threads, stream, __VA_ARGS__);       \
    TWML_CUDA_RETURN_IF_ERROR(::twml::cuda::CodeOf(cudaGetLastError())); \
  } while (false)

#endif  // TWML_CUDA_WORKSPACE_H_
