// The product of a batch with a table, and its gradient by the values, for every kind of table.
//
// A Table is made when the op is made. Its With(ctx, input, batch, use, body) calls body(batch,
// weights) for the table at an input: the ids of that batch are rows of `weights`.
#ifndef TWML_TF_KERNELS_SPARSE_PRODUCT_OP_H_
#define TWML_TF_KERNELS_SPARSE_PRODUCT_OP_H_

#include "cc/core/sparse_linear.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {

// Whether reading rows counts as a use of them, for the policy of a cache.
enum class RowUse { kCounts, kDoesNotCount };

template <class Id, class Table>
class SparseLinearOp : public Kernel {
 public:
  explicit SparseLinearOp(OpKernelConstruction* ctx) : Kernel(ctx), table_(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Csr<Id> batch;
    TF_RETURN_IF_ERROR(
        ToAbslStatus(CsrOf<Id>(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch)));
    return table_.With(
        ctx, 3, batch, RowUse::kCounts, [&](const Csr<Id>& rows, const auto& weights) {
          Tensor* out;
          TF_RETURN_IF_ERROR(
              AllocateOutput(ctx, 0, "output", {rows.num_rows(), weights.dim}, &out));
          return ToAbslStatus(SparseLinear(rows, weights, IntraOp(ctx), out->flat<float>().data()));
        });
  }

  Table table_;
  bool binary_;
};

template <class Id, class Table>
class SparseLinearValuesGradOp : public Kernel {
 public:
  explicit SparseLinearValuesGradOp(OpKernelConstruction* ctx) : Kernel(ctx), table_(ctx) {}

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Csr<Id> batch;
    const Tensor no_values(tensorflow::DT_FLOAT, TensorShape({0}));
    TF_RETURN_IF_ERROR(
        ToAbslStatus(CsrOf<Id>(ctx->input(0), no_values, ctx->input(1), true, &batch)));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(3), 2, "grad")));
    Tensor* out;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "values_grad", {batch.num_entries()}, &out));
    return table_.With(
        ctx, 2, batch, RowUse::kDoesNotCount, [&](const Csr<Id>& rows, const auto& weights) {
          return ToAbslStatus(SparseLinearValuesGrad(rows, weights, MatrixOf(ctx->input(3)),
                                                     IntraOp(ctx), out->flat<float>().data()));
        });
  }

  Table table_;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_SPARSE_PRODUCT_OP_H_
