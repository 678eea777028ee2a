// Tensors whose sizes come from inputs: an error, where TensorShape's constructor would end the
// process, if they overflow.
#ifndef TWML_TF_KERNELS_ALLOCATE_H_
#define TWML_TF_KERNELS_ALLOCATE_H_

#include <cstdint>
#include <limits>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace twml {

// "output of 5 x 4096 x 4 bytes"
inline std::string SizeText(const char* name, absl::Span<const int64_t> dims,
                            tensorflow::DataType dtype) {
  return absl::StrCat(name, " of ", absl::StrJoin(dims, " x "), " x ",
                      tensorflow::DataTypeSize(dtype), " bytes");
}

// The shape of a tensor, if its bytes can be counted in 63 bits.
inline absl::Status ShapeOf(const char* name, absl::Span<const int64_t> dims,
                            tensorflow::DataType dtype, tensorflow::TensorShape* shape) {
  const int64_t most = std::numeric_limits<int64_t>::max() / tensorflow::DataTypeSize(dtype);
  if (tensorflow::TensorShape::BuildTensorShape(dims, shape).ok() &&
      shape->num_elements() <= most) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(SizeText(name, dims, dtype), " is larger than any memory"));
}

// The error of an allocation that failed for the reason `why`.
inline absl::Status NotAllocated(const char* name, absl::Span<const int64_t> dims,
                                 tensorflow::DataType dtype, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(SizeText(name, dims, dtype),
                                               " could not be allocated: ", why.message()));
}

// Output i of a kernel. `name` is what messages call it.
inline absl::Status AllocateOutput(tensorflow::OpKernelContext* ctx, int i, const char* name,
                                   absl::Span<const int64_t> dims, tensorflow::Tensor** out) {
  const tensorflow::DataType dtype = ctx->expected_output_dtype(i);
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(ShapeOf(name, dims, dtype, &shape));
  const absl::Status allocated = ctx->allocate_output(i, shape, out);
  return allocated.ok() ? allocated : NotAllocated(name, dims, dtype, allocated);
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_ALLOCATE_H_
