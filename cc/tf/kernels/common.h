// What every kernel needs: TF's intra-op pool as a ParallelFor, spans of tensors, and statuses.
#ifndef TWML_TF_KERNELS_COMMON_H_
#define TWML_TF_KERNELS_COMMON_H_

#include "cc/core/csr.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/denormal.h"

namespace twml {

inline ParallelFor IntraOp(tensorflow::OpKernelContext* ctx) {
  auto* pool = ctx->device()->tensorflow_cpu_worker_threads()->workers;
  return [pool](int64_t total, int64_t cost_per_unit,
                const std::function<void(int64_t, int64_t)>& body) {
    // A cost in ns understates TF's unit (cycles) a little, which favours fewer threads.
    if (total > 0) pool->ParallelFor(total, cost_per_unit, body);
  };
}

// IntraOp for kernels whose result a denormal can change: TF's threads take denormals for zeros, so
// that 0 < 1e-40 does not hold on them.
inline ParallelFor IeeeIntraOp(tensorflow::OpKernelContext* ctx) {
  return [parallel_for = IntraOp(ctx)](int64_t total, int64_t cost_per_unit,
                                       const std::function<void(int64_t, int64_t)>& body) {
    parallel_for(total, cost_per_unit, [&body](int64_t begin, int64_t end) {
      tensorflow::port::ScopedDontFlushDenormal ieee;
      body(begin, end);
    });
  };
}

template <class T>
Span<const T> SpanOf(const tensorflow::Tensor& t) {
  return {t.flat<T>().data(), t.NumElements()};
}

template <class T>
Span<T> MutableSpanOf(tensorflow::Tensor* t) {
  return {t->flat<T>().data(), t->NumElements()};
}

inline absl::Status ToTf(const Status& s) {
  return s.ok() ? absl::OkStatus() : absl::InvalidArgumentError(s.message());
}

// The shape check of an input: `rank` dimensions.
inline Status CheckRank(const tensorflow::Tensor& t, int rank, const char* name) {
  if (t.dims() == rank) return Status();
  return Invalid(name, " must have rank ", rank, ", got shape ", t.shape().DebugString());
}

template <class Id>
Status CsrOf(const tensorflow::Tensor& ids, const tensorflow::Tensor& values,
             const tensorflow::Tensor& row_splits, bool binary, Csr<Id>* batch) {
  TWML_RETURN_IF_ERROR(CheckRank(ids, 1, "ids"));
  TWML_RETURN_IF_ERROR(CheckRank(values, 1, "values"));
  TWML_RETURN_IF_ERROR(CheckRank(row_splits, 1, "row_splits"));
  *batch = {SpanOf<Id>(ids), SpanOf<float>(values), SpanOf<int64_t>(row_splits), binary};
  if (row_splits.NumElements() == 0) return CheckRowSplits(batch->row_splits, 0);
  return Status();
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_COMMON_H_
