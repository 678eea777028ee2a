// The tensor of an earlier call, to see whether that of this call has the same content.
#ifndef TWML_TF_KERNELS_TENSOR_SNAPSHOT_H_
#define TWML_TF_KERNELS_TENSOR_SNAPSHOT_H_

#include <cstring>

#include "cc/tf/kernels/allocate.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace twml {

// A buffer of TensorFlow's own, which a variable's tensor has, is kept itself: as long as it is, it
// is not written to and no other tensor can lie at its address, so that the address tells. Memory
// that TensorFlow only borrows (a fed NumPy array) may change at any time: of this a copy is kept,
// and the content is compared.
class TensorSnapshot {
 public:
  bool Same(const tensorflow::Tensor& t) const {
    if (t.shape() != kept_.shape() || t.dtype() != kept_.dtype()) return false;
    return t.data() == kept_.data() || t.NumElements() == 0 ||
           std::memcmp(t.data(), kept_.data(), t.TotalBytes()) == 0;
  }

  absl::Status Keep(tensorflow::OpKernelContext* ctx, const char* name,
                    const tensorflow::Tensor& t) {
    if (t.NumElements() == 0 || OwnedByTensorFlow(t)) {
      kept_ = t;
      return absl::OkStatus();
    }
    tensorflow::Tensor copy;
    const absl::Status allocated = ctx->allocate_temp(t.dtype(), t.shape(), &copy);
    if (!allocated.ok()) return NotAllocated(name, t.shape().dim_sizes(), t.dtype(), allocated);
    std::memcpy(copy.data(), t.data(), t.TotalBytes());
    kept_ = copy;
    return absl::OkStatus();
  }

  const tensorflow::Tensor& tensor() const { return kept_; }

 private:
  static bool OwnedByTensorFlow(tensorflow::Tensor t) {
    tensorflow::TensorBuffer* const buffer = tensorflow::DMAHelper::buffer(&t);
    return buffer->OwnsMemory() && buffer->root_buffer()->OwnsMemory();
  }

  tensorflow::Tensor kept_;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_TENSOR_SNAPSHOT_H_
