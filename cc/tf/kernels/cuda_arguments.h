// Checks of the arguments of kernels for CUDA GPUs, and their form in the interface of the library.
// The content of tensors is on the device; only their shapes are checked.
#ifndef TWML_TF_KERNELS_CUDA_ARGUMENTS_H_
#define TWML_TF_KERNELS_CUDA_ARGUMENTS_H_

#include <string>

#include "cc/cuda/twml_cuda.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {

inline std::string Describe(const tensorflow::ResourceHandle& handle, const Tensor& table) {
  return absl::StrCat("table '", handle.name(), "' of shape ", table.shape().DebugString());
}

inline TwmlCudaTable TableOf(const Tensor& table) {
  return {table.data(), table.dtype() == tensorflow::DT_BFLOAT16, table.dim_size(0),
          RowSize(table.shape())};
}

inline absl::Status BatchOf(const Tensor& ids, const Tensor& values, const Tensor& row_splits,
                            bool binary, TwmlCudaBatch* batch) {
  TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ids, 1, "ids")));
  TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(row_splits, 1, "row_splits")));
  if (row_splits.NumElements() == 0) {
    return absl::InvalidArgumentError(
        "row_splits must not be empty: it has one more item than the batch has rows");
  }
  const int64_t n = ids.NumElements(), expected = binary ? 0 : n;
  if (values.dims() != 1 || values.NumElements() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("values must have ", expected, " items, got ", values.shape().DebugString()));
  }
  *batch = {ids.data(),
            ids.dtype() == tensorflow::DT_INT64,
            binary ? nullptr : values.flat<float>().data(),
            row_splits.flat<int64_t>().data(),
            n,
            row_splits.NumElements() - 1};
  return absl::OkStatus();
}

inline absl::Status CheckShape(const Tensor& t, const char* name, int64_t rows, int64_t dim) {
  if (t.dims() == 2 && t.dim_size(0) == rows && t.dim_size(1) == dim) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must have shape [", rows, ", ", dim,
                                                 "], got ", t.shape().DebugString()));
}

// For the list input of GroupIds, which has no kernel for GPUs.
inline absl::Status GroupsOfIdsError() {
  return absl::InvalidArgumentError("groups must be empty, since GroupIds has no kernel here");
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_CUDA_ARGUMENTS_H_
