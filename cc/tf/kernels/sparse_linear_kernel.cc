#include "cc/tf/kernels/batch_groups.h"
#include "cc/tf/kernels/reusable_buffer.h"
#include "cc/tf/kernels/sparse_product_op.h"
#include "cc/tf/kernels/table.h"

namespace twml {
namespace {

// A table that is a tensor.
class TensorTable {
 public:
  explicit TensorTable(OpKernelConstruction*) {}

  template <class Id, class Body>
  absl::Status With(OpKernelContext* ctx, int input, const Csr<Id>& batch, RowUse, Body body) {
    return Visit(ctx->input(input), batch, body);
  }

 protected:
  template <class Id, class Body>
  static absl::Status Visit(const Tensor& table, const Csr<Id>& batch, Body body) {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(table, 2, "weights")));
    return VisitWeightType(
        table, [&](auto weight) { return body(batch, MatrixOf<decltype(weight)>(table)); });
  }
};

// A table that is a variable, which is locked for reading.
class VariableTable : public TensorTable {
 public:
  using TensorTable::TensorTable;

  template <class Id, class Body>
  absl::Status With(OpKernelContext* ctx, int input, const Csr<Id>& batch, RowUse, Body body) {
    LockedTables table;
    TF_RETURN_IF_ERROR(LockForReading(ctx, input, 1, TableDType::kFloat32OrBfloat16, &table));
    huge_pages_.Advise(table.tensor().data(), table.tensor().TotalBytes());
    return Visit(table.tensor(), batch, body);
  }

 private:
  HugePages huge_pages_;
};

// Allocates the outputs 0 (unique ids [U]) and 1 (rows [U, …]) once U is known. The rows have the
// shape `like`, except for its first dimension.
template <class Id>
class RowsOutputAllocator {
 public:
  AllocateRows<Id> Allocate(OpKernelContext* ctx, const TensorShape& like, absl::Status* status) {
    return [this, ctx, like, status](int64_t number) -> RowsOutput<Id> {
      auto dims = like.dim_sizes();
      dims[0] = number;
      Tensor* ids = nullptr;
      Tensor rows;
      *status = AllocateOutput(ctx, 0, "unique_ids", {number}, &ids);
      if (status->ok()) {
        *status = rows_.Allocate(ctx, "rows", tensorflow::DT_FLOAT, dims, &rows);
      }
      if (!status->ok()) return {nullptr, nullptr};
      ctx->set_output(1, rows);
      return {ids->flat<Id>().data(), rows.flat<float>().data()};
    };
  }

 private:
  ReusableBuffer rows_;
};

template <class Id>
class SparseLinearWeightsGradOp : public Kernel {
 public:
  explicit SparseLinearWeightsGradOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Csr<Id> batch;
    TF_RETURN_IF_ERROR(
        ToAbslStatus(CsrOf<Id>(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch)));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(3), 2, "grad")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(4), 0, "input_dim")));
    const Matrix<const float> grad = MatrixOf(ctx->input(3));
    const int64_t input_dim = ctx->input(4).scalar<int64_t>()();
    const GroupedBatch<Id>* groups;
    TF_RETURN_IF_ERROR(ReadGroups(ctx, &groups));
    if (groups != nullptr && groups->num_entries != batch.num_entries()) {
      return absl::InvalidArgumentError(
          absl::StrCat("groups must be made of the ", batch.num_entries(),
                       " entries, got groups of ", groups->num_entries));
    }
    absl::Status allocated;
    const auto rows = rows_.Allocate(ctx, ctx->input(3).shape(), &allocated);
    TF_RETURN_IF_ERROR(ToAbslStatus(
        groups == nullptr ? SparseLinearWeightsGrad(batch, input_dim, grad, IntraOp(ctx), rows)
                          : SparseLinearWeightsGrad(*groups, grad, IntraOp(ctx), rows)));
    return allocated;
  }

  bool binary_;
  RowsOutputAllocator<Id> rows_;
};

template <class Id>
class SumDuplicatesOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(0), 1, "ids")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(ctx->input(1), "rows")));
    const Span<const Id> ids = SpanOf<Id>(ctx->input(0));
    const Matrix<const float> rows = MatrixOf(ctx->input(1));
    const GroupedBatch<Id>* groups;
    TF_RETURN_IF_ERROR(ReadGroups(ctx, &groups));
    absl::Status allocated;
    const auto summed = rows_.Allocate(ctx, ctx->input(1).shape(), &allocated);
    if (groups == nullptr) {
      TF_RETURN_IF_ERROR(ToAbslStatus(SumDuplicates(ids, rows, IntraOp(ctx), summed)));
      return allocated;
    }
    TF_RETURN_IF_ERROR(
        ToAbslStatus(CheckGroupedIds(*groups, ids, groups->input_dim, IntraOp(ctx))));
    TF_RETURN_IF_ERROR(ToAbslStatus(SparseLinearWeightsGrad(*groups, rows, IntraOp(ctx), summed)));
    return allocated;
  }

  RowsOutputAllocator<Id> rows_;
};

// Reads the number of rows from input 1 and allocates their row splits as output `out`.
absl::Status AllocateRowSplits(OpKernelContext* ctx, int out, int64_t* num_rows,
                               int64_t** row_splits) {
  TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(1), 0, "num_rows")));
  *num_rows = ctx->input(1).scalar<int64_t>()();
  if (*num_rows < 0 || *num_rows >= int64_t{1} << 60) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_rows must be in [0, 2^60), got ", *num_rows));
  }
  Tensor* tensor;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, out, "row_splits", {*num_rows + 1}, &tensor));
  *row_splits = tensor->flat<int64_t>().data();
  return absl::OkStatus();
}

class RowSplitsFromIndicesOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(0), 1, "row_indices")));
    int64_t num_rows, *row_splits;
    TF_RETURN_IF_ERROR(AllocateRowSplits(ctx, 0, &num_rows, &row_splits));
    return ToAbslStatus(
        RowSplitsFromIndices(SpanOf<int64_t>(ctx->input(0)), num_rows, IntraOp(ctx), row_splits));
  }
};

class CsrFromIndicesOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& indices = ctx->input(0);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(indices, 2, "indices")));
    if (indices.dim_size(1) != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("indices must have 2 columns, got ", indices.dim_size(1)));
    }
    int64_t num_rows, *row_splits;
    TF_RETURN_IF_ERROR(AllocateRowSplits(ctx, 1, &num_rows, &row_splits));
    Tensor* ids;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "ids", {indices.dim_size(0)}, &ids));
    return ToAbslStatus(CsrFromIndices(SpanOf<int64_t>(indices), num_rows, IntraOp(ctx),
                                       ids->flat<int64_t>().data(), row_splits));
  }
};

#define TWML_REGISTER(Id)                                                                        \
  REGISTER_KERNEL_BUILDER(Name("Twml>SparseLinear").Device(DEVICE_CPU).TypeConstraint<Id>("T"),  \
                          SparseLinearOp<Id, TensorTable>);                                      \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>ResourceSparseLinear").Device(DEVICE_CPU).TypeConstraint<Id>("T"),              \
      SparseLinearOp<Id, VariableTable>);                                                        \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>SparseLinearValuesGrad").Device(DEVICE_CPU).TypeConstraint<Id>("T"),            \
      SparseLinearValuesGradOp<Id, TensorTable>);                                                \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>ResourceSparseLinearValuesGrad").Device(DEVICE_CPU).TypeConstraint<Id>("T"),    \
      SparseLinearValuesGradOp<Id, VariableTable>);                                              \
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
