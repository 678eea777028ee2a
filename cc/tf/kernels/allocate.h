// Allocation of tensors whose sizes come from inputs. A size that overflows is an error here, while
// the constructor of TensorShape would abort the process.
#ifndef TWML_TF_KERNELS_ALLOCATE_H_
#define TWML_TF_KERNELS_ALLOCATE_H_

#include <cstdint>
#include <limits>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace twml {

// For example "output of 5 x 4096 x 4 bytes".
inline std::string SizeText(const char* name, absl::Span<const int64_t> dims,
                            tensorflow::DataType dtype) {
  return absl::StrCat(name, " of ", absl::StrJoin(dims, " x "), " x ",
                      tensorflow::DataTypeSize(dtype), " bytes");
}

// Makes a shape. Fails if the number of bytes of the tensor does not fit into 63 bits.
inline absl::Status MakeShape(const char* name, absl::Span<const int64_t> dims,
                              tensorflow::DataType dtype, tensorflow::TensorShape* shape) {
  const int64_t max_elements =
      std::numeric_limits<int64_t>::max() / tensorflow::DataTypeSize(dtype);
  if (tensorflow::TensorShape::BuildTensorShape(dims, shape).ok() &&
      shape->num_elements() <= max_elements) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(SizeText(name, dims, dtype), " is larger than any memory"));
}

// The error message of a failed allocation. `why` is the error of the allocator.
inline absl::Status AllocationError(const char* name, absl::Span<const int64_t> dims,
                                    tensorflow::DataType dtype, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(SizeText(name, dims, dtype),
                                               " could not be allocated: ", why.message()));
}

// Allocates output i of a kernel. Error messages refer to it by `name`.
inline absl::Status AllocateOutput(tensorflow::OpKernelContext* ctx, int i, const char* name,
                                   absl::Span<const int64_t> dims, tensorflow::Tensor** out) {
  const tensorflow::DataType dtype = ctx->expected_output_dtype(i);
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(MakeShape(name, dims, dtype, &shape));
  const absl::Status allocated = ctx->allocate_output(i, shape, out);
  return allocated.ok() ? allocated : AllocationError(name, dims, dtype, allocated);
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_ALLOCATE_H_
