// Memory of an output that a kernel keeps for its next call.
#ifndef TWML_TF_KERNELS_REUSABLE_BUFFER_H_
#define TWML_TF_KERNELS_REUSABLE_BUFFER_H_

#include "cc/core/huge_pages.h"
#include "cc/tf/kernels/allocate.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/mutex.h"

namespace twml {

// Large outputs whose first dimension differs from call to call are slices of one buffer, if nobody
// holds it any more by then: its fresh pages would cost more than the work that fills them.
class ReusableBuffer {
 public:
  // `name` is what messages call the output.
  absl::Status Allocate(tensorflow::OpKernelContext* ctx, const char* name,
                        tensorflow::DataType dtype, absl::Span<const int64_t> dims,
                        tensorflow::Tensor* out) {
    tensorflow::TensorShape shape;
    TF_RETURN_IF_ERROR(ShapeOf(name, dims, dtype, &shape));
    tensorflow::mutex_lock lock(mu_);
    if (!Fits(shape)) {
      tensorflow::TensorShape roomy = shape;
      if (!roomy.SetDimWithStatus(0, dims[0] + dims[0] / 8).ok()) roomy = shape;
      kept_ = tensorflow::Tensor();
      const absl::Status allocated = ctx->allocate_temp(dtype, roomy, &kept_);
      if (!allocated.ok()) return NotAllocated(name, dims, dtype, allocated);
      huge_pages_.Advise(kept_.data(), kept_.TotalBytes());
    }
    *out = kept_.Slice(0, dims[0]);
    return absl::OkStatus();
  }

 private:
  bool Fits(const tensorflow::TensorShape& shape) const {
    if (kept_.dims() != shape.dims() || !kept_.RefCountIsOne()) return false;
    for (int d = 1; d < shape.dims(); ++d) {
      if (kept_.dim_size(d) != shape.dim_size(d)) return false;
    }
    return kept_.dim_size(0) >= shape.dim_size(0);
  }

  tensorflow::mutex mu_;
  tensorflow::Tensor kept_;
  HugePages huge_pages_;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_REUSABLE_BUFFER_H_
