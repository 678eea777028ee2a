#include "cc/core/average_rows.h"
#include "cc/tf/kernels/batch_groups.h"
#include "cc/tf/kernels/changed_rows.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"
#include "cc/tf/kernels/tiered_rows.h"

namespace twml {
namespace {

class AverageRowsOp : public Kernel {
 public:
  explicit AverageRowsOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    bool hogwild;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hogwild", &hogwild));
    access_ = hogwild ? Access::kHogwild : Access::kUpdate;
  }

 private:
  enum { kVar, kAverage, kSteps, kIds, kStep, kLogMomentum };  // inputs

  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor &step = ctx->input(kStep), &log_momentum = ctx->input(kLogMomentum);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(step, 0, "step")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(log_momentum, 0, "log_momentum")));
    TF_RETURN_IF_ERROR(CheckRowNumbers(ctx->input(kIds)));
    LockedTables tables;
    TF_RETURN_IF_ERROR(tables.Add(ctx, kVar, 1, Access::kRead));
    TF_RETURN_IF_ERROR(tables.Add(ctx, kAverage, 2, access_));
    if (!tables.distinct()) {
      return absl::InvalidArgumentError("var, average and steps must be different variables");
    }
    if (FindTieredTable(tables.var(kVar)) != nullptr) {
      return absl::UnimplementedError(
          "moving averages are not supported for a table whose rows are in a file");
    }
    tables.Lock();
    TF_RETURN_IF_ERROR(CheckVariables(tables));
    const Tensor& var = tables.tensor(kVar);
    const auto changes = FindTableChanges(tables.var(kVar));
    for (int i = kVar; changes != nullptr && i <= kSteps; ++i) {
      changes->NoticeAssignment(tables.var(i));
    }
    RowAverages averages;
    averages.values = {nullptr, var.dim_size(0), RowSize(var.shape())};
    TF_RETURN_IF_ERROR(tables.MutableData(ctx, kAverage, &averages.values.data));
    TF_RETURN_IF_ERROR(tables.MutableData(ctx, kSteps, &averages.steps));
    for (int i = kAverage; changes != nullptr && i <= kSteps; ++i) {
      changes->Expect(tables.var(i));
    }
    huge_pages_.Advise(tables.tensor(kAverage).data(), tables.tensor(kAverage).TotalBytes());
    return VisitIds(ctx->input(kIds), [&](const auto& ids) {
      if (changes != nullptr) changes->rows.Mark(ids, IntraOp(ctx));
      return VisitWeightType(var, [&](auto weight) {
        return ToAbslStatus(AverageRows(ids, MatrixOf<decltype(weight)>(var), averages,
                                        step.scalar<int64_t>()(), log_momentum.scalar<double>()(),
                                        IntraOp(ctx)));
      });
    });
  }

  static const BatchGroups* GroupsOf(const Tensor& ids) {
    return ids.scalar<tensorflow::Variant>()().get<BatchGroups>();
  }

  static absl::Status CheckRowNumbers(const Tensor& ids) {
    const bool groups = ids.dtype() == tensorflow::DT_VARIANT;
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ids, groups ? 0 : 1, "ids")));
    if (groups && GroupsOf(ids) == nullptr) {
      return absl::InvalidArgumentError("ids must be row numbers or an output of GroupBatch");
    }
    return absl::OkStatus();
  }

  // Calls body with the row numbers, a Span<const int32_t> or Span<const int64_t>.
  template <class Body>
  static absl::Status VisitIds(const Tensor& ids, Body body) {
    if (ids.dtype() == tensorflow::DT_INT32) return body(SpanOf<int32_t>(ids));
    if (ids.dtype() == tensorflow::DT_INT64) return body(SpanOf<int64_t>(ids));
    const auto of_groups = [&](const auto& groups) {
      using Id = std::remove_const_t<std::remove_pointer_t<decltype(groups.ids.data())>>;
      return body(Span<const Id>(groups.ids.data(), groups.num_groups));
    };
    return std::visit([&](const auto& batch) { return std::visit(of_groups, batch->groups); },
                      GroupsOf(ids)->batch);
  }

  static absl::Status CheckVariables(const LockedTables& tables) {
    const Tensor &var = tables.tensor(kVar), &average = tables.tensor(kAverage);
    const Tensor& steps = tables.tensor(kSteps);
    TF_RETURN_IF_ERROR(CheckTable(var, "var", TableDType::kFloat32OrBfloat16));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(var, "var")));
    TF_RETURN_IF_ERROR(CheckTable(average, "average"));
    if (average.shape() != var.shape()) {
      return absl::InvalidArgumentError(absl::StrCat("average must have the shape of var, ",
                                                     var.shape().DebugString(), ", got ",
                                                     average.shape().DebugString()));
    }
    if (!steps.IsInitialized()) return absl::FailedPreconditionError("steps is not initialized");
    if (steps.dtype() != tensorflow::DT_INT64 || steps.NumElements() != var.dim_size(0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "steps must be int64 [", var.dim_size(0), "], got ",
          tensorflow::DataTypeString(steps.dtype()), " ", steps.shape().DebugString()));
    }
    return absl::OkStatus();
  }

  Access access_;
  HugePages huge_pages_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>AverageRows").Device(DEVICE_CPU), AverageRowsOp);

}  // namespace
}  // namespace twml
