// A snapshot of an input, with which later calls detect whether the input has changed.
#ifndef TWML_TF_KERNELS_TENSOR_SNAPSHOT_H_
#define TWML_TF_KERNELS_TENSOR_SNAPSHOT_H_

#include <cstring>

#include "cc/tf/kernels/allocate.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace twml {

// If TensorFlow owns the tensor's buffer, as for the value of a variable, the snapshot holds a
// reference to it. While it does, the buffer is not written and no other tensor can have its
// address, so comparing addresses is enough. Memory that TensorFlow only borrows (a fed NumPy
// array) may change at any time, so the snapshot is a copy and the content is compared.
class TensorSnapshot {
 public:
  bool Matches(const tensorflow::Tensor& t) const {
    if (t.shape() != tensor_.shape() || t.dtype() != tensor_.dtype()) return false;
    return t.data() == tensor_.data() || t.NumElements() == 0 ||
           std::memcmp(t.data(), tensor_.data(), t.TotalBytes()) == 0;
  }

  absl::Status Capture(tensorflow::OpKernelContext* ctx, const char* name,
                       const tensorflow::Tensor& t) {
    if (t.NumElements() == 0 || OwnedByTensorFlow(t)) {
      tensor_ = t;
      return absl::OkStatus();
    }
    tensorflow::Tensor copy;
    const absl::Status allocated = ctx->allocate_temp(t.dtype(), t.shape(), &copy);
    if (!allocated.ok()) return AllocationError(name, t.shape().dim_sizes(), t.dtype(), allocated);
    std::memcpy(copy.data(), t.data(), t.TotalBytes());
    tensor_ = copy;
    return absl::OkStatus();
  }

  const tensorflow::Tensor& tensor() const { return tensor_; }

 private:
  static bool OwnedByTensorFlow(tensorflow::Tensor t) {
    tensorflow::TensorBuffer* const buffer = tensorflow::DMAHelper::buffer(&t);
    return buffer->OwnsMemory() && buffer->root_buffer()->OwnsMemory();
  }

  tensorflow::Tensor tensor_;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_TENSOR_SNAPSHOT_H_
