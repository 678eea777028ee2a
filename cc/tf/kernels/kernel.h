// The base of all kernels.
#ifndef TWML_TF_KERNELS_KERNEL_H_
#define TWML_TF_KERNELS_KERNEL_H_

#include <exception>
#include <new>
#include <stdexcept>

#include "tensorflow/core/framework/op_kernel.h"

namespace twml {

// Subclasses implement Run, which returns a status. Exceptions must not propagate into TensorFlow,
// so they become statuses. The only expected exception is that the core cannot allocate its working
// memory.
class Kernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tensorflow::OpKernelContext* ctx) final { OP_REQUIRES_OK(ctx, RunAndCatch(ctx)); }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx) = 0;

 private:
  absl::Status RunAndCatch(tensorflow::OpKernelContext* ctx) {
    try {
      return Run(ctx);
    } catch (const std::bad_alloc&) {
      return OutOfMemory();
    } catch (const std::length_error&) {  // a std::vector with more items than can be addressed
      return OutOfMemory();
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat(type_string(), " failed: ", e.what()));
    }
  }
  absl::Status OutOfMemory() const {
    return absl::ResourceExhaustedError(
        absl::StrCat(type_string(), " could not allocate its working memory"));
  }
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_KERNEL_H_
