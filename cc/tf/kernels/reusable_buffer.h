// The memory of a kernel's output, which the kernel reuses in its next call.
#ifndef TWML_TF_KERNELS_REUSABLE_BUFFER_H_
#define TWML_TF_KERNELS_REUSABLE_BUFFER_H_

#include "cc/core/huge_pages.h"
#include "cc/tf/kernels/allocate.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/mutex.h"

namespace twml {

// A large output whose first dimension varies between calls is a slice of one buffer, which the
// next call reuses unless there are still other references to it. Without reuse, the page faults of
// fresh memory would cost more than the work that fills it.
class ReusableBuffer {
 public:
  // Error messages refer to the output by `name`.
  absl::Status Allocate(tensorflow::OpKernelContext* ctx, const char* name,
                        tensorflow::DataType dtype, absl::Span<const int64_t> dims,
                        tensorflow::Tensor* out) {
    tensorflow::TensorShape shape;
    TF_RETURN_IF_ERROR(MakeShape(name, dims, dtype, &shape));
    tensorflow::mutex_lock lock(mu_);
    if (!Fits(shape)) {
      tensorflow::TensorShape padded = shape;
      if (!padded.SetDimWithStatus(0, dims[0] + dims[0] / 8).ok()) padded = shape;
      buffer_ = tensorflow::Tensor();
      const absl::Status allocated = ctx->allocate_temp(dtype, padded, &buffer_);
      if (!allocated.ok()) return AllocationError(name, dims, dtype, allocated);
      huge_pages_.Advise(buffer_.data(), buffer_.TotalBytes());
    }
    *out = buffer_.Slice(0, dims[0]);
    return absl::OkStatus();
  }

 private:
  bool Fits(const tensorflow::TensorShape& shape) const {
    if (buffer_.dims() != shape.dims() || !buffer_.RefCountIsOne()) return false;
    for (int d = 1; d < shape.dims(); ++d) {
      if (buffer_.dim_size(d) != shape.dim_size(d)) return false;
    }
    return buffer_.dim_size(0) >= shape.dim_size(0);
  }

  tensorflow::mutex mu_;
  tensorflow::Tensor buffer_;
  HugePages huge_pages_;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_REUSABLE_BUFFER_H_
