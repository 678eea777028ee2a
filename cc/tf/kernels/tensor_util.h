// Helpers for all kernels: views of tensors, checks of shapes, and conversion of statuses.
#ifndef TWML_TF_KERNELS_TENSOR_UTIL_H_
#define TWML_TF_KERNELS_TENSOR_UTIL_H_

#include "cc/core/csr.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/sparse_linear.h"
#include "cc/core/status.h"
#include "cc/tf/kernels/allocate.h"
#include "cc/tf/kernels/intra_op.h"
#include "cc/tf/kernels/kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace twml {

using tensorflow::DEVICE_CPU;
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <class T>
Span<const T> SpanOf(const Tensor& t) {
  return {t.flat<T>().data(), t.NumElements()};
}

template <class T>
Span<T> MutableSpanOf(Tensor* t) {
  return {t->flat<T>().data(), t->NumElements()};
}

template <class T>
Matrix<const T> MatrixIn(const Tensor& t) {
  return {t.flat<T>().data(), t.dim_size(0), t.dim_size(1)};
}

inline absl::Status ToAbslStatus(const Status& s) {
  return s.ok() ? absl::OkStatus() : absl::InvalidArgumentError(s.message());
}

// Checks that an input has `rank` dimensions.
inline Status CheckRank(const Tensor& t, int rank, const char* name) {
  if (t.dims() == rank) return Status();
  return Invalid(name, " must have rank ", rank, ", got shape ", t.shape().DebugString());
}

// Makes a Csr of the three tensors of a batch.
template <class Id>
Status CsrOf(const Tensor& ids, const Tensor& values, const Tensor& row_splits, bool binary,
             Csr<Id>* batch) {
  TWML_RETURN_IF_ERROR(CheckRank(ids, 1, "ids"));
  TWML_RETURN_IF_ERROR(CheckRank(values, 1, "values"));
  TWML_RETURN_IF_ERROR(CheckRank(row_splits, 1, "row_splits"));
  *batch = {SpanOf<Id>(ids), SpanOf<float>(values), SpanOf<int64_t>(row_splits), binary};
  if (row_splits.NumElements() == 0) return CheckRowSplits(batch->row_splits, 0);
  return Status();
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_TENSOR_UTIL_H_
