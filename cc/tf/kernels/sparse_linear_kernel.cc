#include "cc/core/sparse_linear.h"
#include "cc/tf/kernels/common.h"
#include "cc/tf/kernels/kept_buffer.h"
#include "cc/tf/kernels/table.h"

namespace twml {
namespace {

// Runs `body(weights)` on the table at input i: a tensor, or a variable under its shared lock.
template <bool kResource, class Body>
absl::Status WithTable(OpKernelContext* ctx, int i, HugePages* huge_pages, Body body) {
  const auto run = [&](const Tensor& table) -> absl::Status {
    TF_RETURN_IF_ERROR(ToTf(CheckRank(table, 2, "weights")));
    return WithWeightType(table,
                          [&](auto weight) { return body(MatrixOf<decltype(weight)>(table)); });
  };
  if constexpr (kResource) {
    ReadTable table;
    TF_RETURN_IF_ERROR(table.Open(ctx, i, "weights", Stored::kFloat32OrBfloat16));
    huge_pages->Ask(table.tensor().data(), table.tensor().TotalBytes());
    return run(table.tensor());
  } else {
    return run(ctx->input(i));
  }
}

template <class Id, bool kResource>
class SparseLinearOp : public OpKernel {
 public:
  explicit SparseLinearOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
  }

  void Compute(OpKernelContext* ctx) override {
    Csr<Id> batch;
    OP_REQUIRES_OK(ctx,
                   ToTf(CsrOf<Id>(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch)));
    OP_REQUIRES_OK(
        ctx, WithTable<kResource>(ctx, 3, &huge_pages_, [&](const auto& weights) -> absl::Status {
          Tensor* out;
          TF_RETURN_IF_ERROR(
              ctx->allocate_output(0, TensorShape({batch.num_rows(), weights.dim}), &out));
          return ToTf(SparseLinear(batch, weights, IntraOp(ctx), out->flat<float>().data()));
        }));
  }

 private:
  bool binary_;
  HugePages huge_pages_;
};

template <class Id, bool kResource>
class SparseLinearValuesGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Csr<Id> batch;
    const Tensor no_values(tensorflow::DT_FLOAT, TensorShape({0}));
    OP_REQUIRES_OK(ctx, ToTf(CsrOf<Id>(ctx->input(0), no_values, ctx->input(1), true, &batch)));
    OP_REQUIRES_OK(ctx, ToTf(CheckRank(ctx->input(3), 2, "grad")));
    Tensor* out;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(0).shape(), &out));
    OP_REQUIRES_OK(
        ctx, WithTable<kResource>(ctx, 2, &huge_pages_, [&](const auto& weights) -> absl::Status {
          return ToTf(SparseLinearValuesGrad(batch, weights, MatrixOf(ctx->input(3)), IntraOp(ctx),
                                             out->flat<float>().data()));
        }));
  }

 private:
  HugePages huge_pages_;
};

// Outputs 0 (ids [U]) and 1 (rows [U, ...], shaped like `like` but for their number), allocated
// once U is known.
template <class Id>
class OutputRows {
 public:
  AllocateRows<Id> Allocate(OpKernelContext* ctx, const TensorShape& like, absl::Status* status) {
    return [this, ctx, like, status](int64_t number) -> RowsOut<Id> {
      TensorShape shape = like;
      shape.set_dim(0, number);
      Tensor* ids = nullptr;
      Tensor rows;
      *status = ctx->allocate_output(0, TensorShape({number}), &ids);
      if (status->ok()) *status = rows_.Allocate(ctx, tensorflow::DT_FLOAT, shape, &rows);
      if (!status->ok()) return {nullptr, nullptr};
      ctx->set_output(1, rows);
      return {ids->flat<Id>().data(), rows.flat<float>().data()};
    };
  }

 private:
  KeptBuffer rows_;
};

template <class Id>
class SparseLinearWeightsGradOp : public OpKernel {
 public:
  explicit SparseLinearWeightsGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
  }

  void Compute(OpKernelContext* ctx) override {
    Csr<Id> batch;
    OP_REQUIRES_OK(ctx,
                   ToTf(CsrOf<Id>(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch)));
    OP_REQUIRES_OK(ctx, ToTf(CheckRank(ctx->input(3), 2, "grad")));
    OP_REQUIRES_OK(ctx, ToTf(CheckRank(ctx->input(4), 0, "input_dim")));
    const Matrix<const float> grad = MatrixOf(ctx->input(3));
    absl::Status allocated;
    OP_REQUIRES_OK(ctx, ToTf(SparseLinearWeightsGrad(
                            batch, ctx->input(4).scalar<int64_t>()(), grad, IntraOp(ctx),
                            rows_.Allocate(ctx, ctx->input(3).shape(), &allocated))));
    OP_REQUIRES_OK(ctx, allocated);
  }

 private:
  bool binary_;
  OutputRows<Id> rows_;
};

template <class Id>
class SumDuplicatesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ToTf(CheckRank(ctx->input(0), 1, "ids")));
    OP_REQUIRES_OK(ctx, ToTf(CheckRows(ctx->input(1), "rows")));
    const Matrix<const float> rows = MatrixOf(ctx->input(1));
    absl::Status allocated;
    OP_REQUIRES_OK(ctx,
                   ToTf(SumDuplicates(SpanOf<Id>(ctx->input(0)), rows, IntraOp(ctx),
                                      rows_.Allocate(ctx, ctx->input(1).shape(), &allocated))));
    OP_REQUIRES_OK(ctx, allocated);
  }

 private:
  OutputRows<Id> rows_;
};

// Input 1: the number of rows -> output `out`: their row splits, to be filled.
absl::Status AllocateRowSplits(OpKernelContext* ctx, int out, int64_t* num_rows,
                               int64_t** row_splits) {
  TF_RETURN_IF_ERROR(ToTf(CheckRank(ctx->input(1), 0, "num_rows")));
  *num_rows = ctx->input(1).scalar<int64_t>()();
  if (*num_rows < 0 || *num_rows >= INT64_MAX / 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_rows must be in [0, 2^60), got ", *num_rows));
  }
  Tensor* tensor;
  TF_RETURN_IF_ERROR(ctx->allocate_output(out, TensorShape({*num_rows + 1}), &tensor));
  *row_splits = tensor->flat<int64_t>().data();
  return absl::OkStatus();
}

class RowSplitsFromIndicesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ToTf(CheckRank(ctx->input(0), 1, "row_indices")));
    int64_t num_rows, *row_splits;
    OP_REQUIRES_OK(ctx, AllocateRowSplits(ctx, 0, &num_rows, &row_splits));
    OP_REQUIRES_OK(ctx, ToTf(RowSplitsFromIndices(SpanOf<int64_t>(ctx->input(0)), num_rows,
                                                  IntraOp(ctx), row_splits)));
  }
};

class CsrFromIndicesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& indices = ctx->input(0);
    OP_REQUIRES_OK(ctx, ToTf(CheckRank(indices, 2, "indices")));
    OP_REQUIRES(ctx, indices.dim_size(1) == 2,
                absl::InvalidArgumentError(
                    absl::StrCat("indices must have 2 columns, got ", indices.dim_size(1))));
    int64_t num_rows, *row_splits;
    OP_REQUIRES_OK(ctx, AllocateRowSplits(ctx, 1, &num_rows, &row_splits));
    Tensor* ids;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({indices.dim_size(0)}), &ids));
    OP_REQUIRES_OK(ctx, ToTf(CsrFromIndices(SpanOf<int64_t>(indices), num_rows, IntraOp(ctx),
                                            ids->flat<int64_t>().data(), row_splits)));
  }
};

#define TWML_REGISTER(Id)                                                                        \
  REGISTER_KERNEL_BUILDER(Name("Twml>SparseLinear").Device(DEVICE_CPU).TypeConstraint<Id>("T"),  \
                          SparseLinearOp<Id, false>);                                            \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>ResourceSparseLinear").Device(DEVICE_CPU).TypeConstraint<Id>("T"),              \
      SparseLinearOp<Id, true>);                                                                 \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>SparseLinearValuesGrad").Device(DEVICE_CPU).TypeConstraint<Id>("T"),            \
      SparseLinearValuesGradOp<Id, false>);                                                      \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>ResourceSparseLinearValuesGrad").Device(DEVICE_CPU).TypeConstraint<Id>("T"),    \
      SparseLinearValuesGradOp<Id, true>);                                                       \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>SparseLinearWeightsGrad").Device(DEVICE_CPU).TypeConstraint<Id>("T"),           \
      SparseLinearWeightsGradOp<Id>);                                                            \
  REGISTER_KERNEL_BUILDER(Name("Twml>SumDuplicates").Device(DEVICE_CPU).TypeConstraint<Id>("T"), \
                          SumDuplicatesOp<Id>);
TWML_REGISTER(int32_t)
TWML_REGISTER(int64_t)
#undef TWML_REGISTER
REGISTER_KERNEL_BUILDER(Name("Twml>RowSplitsFromIndices").Device(DEVICE_CPU),
                        RowSplitsFromIndicesOp);
REGISTER_KERNEL_BUILDER(Name("Twml>CsrFromIndices").Device(DEVICE_CPU), CsrFromIndicesOp);

}  // namespace
}  // namespace twml
