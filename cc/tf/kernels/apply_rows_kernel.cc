#include "cc/core/group_by_field.h"
#include "cc/tf/kernels/batch_groups.h"
#include "cc/tf/kernels/changed_rows.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"
#include "cc/tf/kernels/tiered_rows.h"

namespace twml {
namespace {

// The base of both update ops. Input 0 is var, inputs 1 to num_slots are its slots, and the last
// inputs are hyper and seed.
class UpdateOp : public Kernel {
 public:
  explicit UpdateOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    std::string rule;
    int num_slots, num_hyper;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rule", &rule));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_slots", &num_slots));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_hyper", &num_hyper));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hogwild", &hogwild_));
    const int index = FindUpdateRule(rule);
    OP_REQUIRES(ctx, index >= 0,
                absl::InvalidArgumentError(absl::StrCat("rule '", rule, "' is not known")));
    rule_ = static_cast<UpdateRule>(index);
    info_ = &kUpdateRules[index];
    OP_REQUIRES(ctx, num_slots == info_->num_slots && num_hyper == info_->num_hyper,
                absl::InvalidArgumentError(
                    absl::StrCat("rule '", rule, "' takes ", info_->num_slots, " slots and ",
                                 info_->num_hyper, " hyper, got ", num_slots, " and ", num_hyper)));
  }

 protected:
  // Input `i`, counted from the first input after the slots.
  const Tensor& Input(OpKernelContext* ctx, int i) const {
    return ctx->input(1 + info_->num_slots + i);
  }
  // `tiered` is null if the table is whole.
  virtual absl::Status Update(OpKernelContext* ctx, const OptimizedTable<float>& table,
                              LockedTieredTable* tiered) const = 0;
  virtual absl::Status Update(OpKernelContext* ctx, const OptimizedTable<Bfloat16>& table,
                              LockedTieredTable* tiered) const = 0;
  // Validates the inputs before a shared table is copied for writing.
  virtual absl::Status Check(OpKernelContext* ctx) const = 0;
  // Marks the rows that Update writes.
  virtual void Mark(OpKernelContext* ctx, ChangedRows* changed) const = 0;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    float hyper[8];
    OpInputList inputs;
    TF_RETURN_IF_ERROR(ctx->input_list("hyper", &inputs));
    for (int i = 0; i < inputs.size(); ++i) {
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(inputs[i], 0, "hyper")));
      hyper[i] = inputs[i].scalar<float>()();
    }
    const Tensor* seed;
    TF_RETURN_IF_ERROR(ctx->input("seed", &seed));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(*seed, 0, "seed")));
    TF_RETURN_IF_ERROR(Check(ctx));
    LockedTables tables;
    TF_RETURN_IF_ERROR(
        tables.Add(ctx, 0, 1 + info_->num_slots, hogwild_ ? Access::kHogwild : Access::kUpdate));
    if (!tables.distinct()) {
      return absl::InvalidArgumentError("var and slots must be different variables");
    }
    tables.Lock();
    const Tensor& var = tables.tensor(0);
    TF_RETURN_IF_ERROR(CheckTable(var, "var", TableDType::kFloat32OrBfloat16));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(var, "var")));
    for (int s = 0; s < info_->num_slots; ++s) {
      TF_RETURN_IF_ERROR(CheckTable(tables.tensor(1 + s), "slots"));
      const auto& shape = tables.tensor(1 + s).shape();
      const bool fits =
          info_->rowwise_slots ? shape.num_elements() == var.dim_size(0) : shape == var.shape();
      if (!fits) {
        return absl::InvalidArgumentError(absl::StrCat("slots[", s, "] must fit var ",
                                                       var.shape().DebugString(), ", got ",
                                                       shape.DebugString()));
      }
    }
    LockedTieredTable tiered;
    auto in_file = FindTieredTable(tables.var(0));
    const bool is_tiered = in_file != nullptr;
    if (is_tiered) {
      if (hogwild_) {
        return absl::UnimplementedError(
            "concurrency=\"hogwild\" is not supported for a table whose rows are in a file");
      }
      TF_RETURN_IF_ERROR(tiered.Use(ctx, std::move(in_file), &tables, 1 + info_->num_slots));
    }
    const auto changes = FindTableChanges(tables.var(0));
    for (int i = 0; changes != nullptr && i <= info_->num_slots; ++i) {
      changes->NoticeAssignment(tables.var(i));
    }
    return VisitWeightType(var, [&](auto weight) -> absl::Status {
      using W = decltype(weight);
      OptimizedTable<W> table;
      table.rule = rule_;
      table.hyper = hyper;
      table.seed = static_cast<uint64_t>(seed->scalar<int64_t>()());
      table.weights = {nullptr, var.dim_size(0), RowSize(var.shape())};
      TF_RETURN_IF_ERROR(tables.MutableData(ctx, 0, &table.weights.data));
      for (int s = 0; s < info_->num_slots; ++s) {
        TF_RETURN_IF_ERROR(tables.MutableData(ctx, 1 + s, &table.slots[s]));
      }
      if (changes != nullptr) {
        for (int i = 0; i <= info_->num_slots; ++i) {
          changes->Expect(tables.var(i));
        }
        Mark(ctx, &changes->rows);
      }
      for (int i = 0; i <= info_->num_slots; ++i) {
        huge_pages_[i].Advise(tables.tensor(i).data(), tables.tensor(i).TotalBytes());
      }
      return Update(ctx, table, is_tiered ? &tiered : nullptr);
    });
  }

  UpdateRule rule_;
  const UpdateRuleInfo* info_;
  bool hogwild_;
  HugePages huge_pages_[1 + kMaxSlots];
};

// Brings the rows of an update into the cache, if the table is tiered.
template <class Id>
RowMap<Id> MapOf(OpKernelContext* ctx, LockedTieredTable* tiered) {
  if (tiered == nullptr) return {};
  return {(*tiered)->num_rows(), [ctx, tiered](Span<const Id> ids, Id* rows) {
            return (*tiered)->Map(ids, tiered->cache(), /*counts=*/false, /*changes=*/true,
                                  IntraOp(ctx), rows);
          }};
}

template <class Id>
class ApplyRowsOp : public UpdateOp {
 public:
  using UpdateOp::UpdateOp;

 protected:
  absl::Status Check(OpKernelContext* ctx) const override {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(Input(ctx, 0), 1, "ids")));
    return ToAbslStatus(CheckRows(Input(ctx, 1), "rows"));
  }
  absl::Status Update(OpKernelContext* ctx, const OptimizedTable<float>& table,
                      LockedTieredTable* tiered) const override {
    return Apply(ctx, table, tiered);
  }
  absl::Status Update(OpKernelContext* ctx, const OptimizedTable<Bfloat16>& table,
                      LockedTieredTable* tiered) const override {
    return Apply(ctx, table, tiered);
  }
  void Mark(OpKernelContext* ctx, ChangedRows* changed) const override {
    changed->Mark(SpanOf<Id>(Input(ctx, 0)), IntraOp(ctx));
  }

 private:
  template <class W>
  absl::Status Apply(OpKernelContext* ctx, const OptimizedTable<W>& table,
                     LockedTieredTable* tiered) const {
    const RowMap<Id> map = MapOf<Id>(ctx, tiered);
    return ToTieredStatus(ApplyRows(SpanOf<Id>(Input(ctx, 0)), MatrixOf(Input(ctx, 1)), table,
                                    IntraOp(ctx), tiered == nullptr ? nullptr : &map));
  }
};

// Reads a scalar int64 input.
template <class Id>
class GroupIdsOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(0), 1, "ids")));
    int64_t input_dim;
    TF_RETURN_IF_ERROR(ReadInputDim(ctx, 1, &input_dim));
    return OutputGroups<Id>(ctx, [&](GroupedBatch<Id>* grouped) {
      return GroupIds(SpanOf<Id>(ctx->input(0)), input_dim, IntraOp(ctx), grouped);
    });
  }
};

template <class Id>
class GroupBatchOp : public Kernel {
 public:
  explicit GroupBatchOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_starts", &field_starts_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Csr<Id> batch;
    TF_RETURN_IF_ERROR(
        ToAbslStatus(CsrOf<Id>(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch)));
    int64_t input_dim;
    TF_RETURN_IF_ERROR(ReadInputDim(ctx, 3, &input_dim));
    const GroupedBatch<Id>* grouped_ids;
    TF_RETURN_IF_ERROR(ReadGroups(ctx, &grouped_ids));
    return OutputGroups<Id>(ctx, [&](GroupedBatch<Id>* grouped) {
      return field_starts_.empty() || grouped_ids != nullptr
                 ? GroupBatch(batch, input_dim, grouped_ids, IntraOp(ctx), grouped)
                 : GroupByField(batch, field_starts_, input_dim, IntraOp(ctx), grouped);
    });
  }

  bool binary_;
  std::vector<int64_t> field_starts_;
};

template <class Id>
Id IdOf(const GroupedBatch<Id>&) {
  return {};
}

class SparseLinearBackwardApplyOp : public UpdateOp {
 public:
  using UpdateOp::UpdateOp;

 protected:
  absl::Status Check(OpKernelContext* ctx) const override {
    const Tensor& groups = Input(ctx, 0);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(groups, 0, "groups")));
    if (groups.scalar<tensorflow::Variant>()().get<BatchGroups>() == nullptr) {
      return absl::InvalidArgumentError("groups must be an output of GroupBatch");
    }
    return ToAbslStatus(CheckRank(Input(ctx, 1), 2, "grad"));
  }
  absl::Status Update(OpKernelContext* ctx, const OptimizedTable<float>& table,
                      LockedTieredTable* tiered) const override {
    return Apply(ctx, table, tiered);
  }
  absl::Status Update(OpKernelContext* ctx, const OptimizedTable<Bfloat16>& table,
                      LockedTieredTable* tiered) const override {
    return Apply(ctx, table, tiered);
  }
  void Mark(OpKernelContext* ctx, ChangedRows* changed) const override {
    const auto mark = [&](const auto& groups) {
      using Id = std::remove_pointer_t<decltype(groups.ids.data())>;
      changed->Mark(Span<const Id>(groups.ids.data(), groups.num_groups), IntraOp(ctx));
    };
    const auto& groups = *Input(ctx, 0).scalar<tensorflow::Variant>()().get<BatchGroups>();
    std::visit([&](const auto& batch) { std::visit(mark, batch->groups); }, groups.batch);
  }

 private:
  template <class W>
  absl::Status Apply(OpKernelContext* ctx, const OptimizedTable<W>& table,
                     LockedTieredTable* tiered) const {
    const auto& groups = *Input(ctx, 0).scalar<tensorflow::Variant>()().get<BatchGroups>();
    const auto apply = [&](const auto& batch, auto id) {
      const auto map = MapOf<decltype(id)>(ctx, tiered);
      return ToTieredStatus(SparseLinearBackwardApply(*batch, MatrixOf(Input(ctx, 1)), table,
                                                      IntraOp(ctx),
                                                      tiered == nullptr ? nullptr : &map));
    };
    return std::visit([&](const auto& batch) { return apply(batch, IdOf(*batch)); }, groups.batch);
  }
};

#define TWML_REGISTER(Id)                                                                     \
  REGISTER_KERNEL_BUILDER(Name("Twml>ApplyRows").Device(DEVICE_CPU).TypeConstraint<Id>("T"),  \
                          ApplyRowsOp<Id>);                                                   \
  REGISTER_KERNEL_BUILDER(Name("Twml>GroupIds").Device(DEVICE_CPU).TypeConstraint<Id>("T"),   \
                          GroupIdsOp<Id>);                                                    \
  REGISTER_KERNEL_BUILDER(Name("Twml>GroupBatch").Device(DEVICE_CPU).TypeConstraint<Id>("T"), \
                          GroupBatchOp<Id>);
TWML_REGISTER(int32_t)
TWML_REGISTER(int64_t)
#undef TWML_REGISTER
REGISTER_KERNEL_BUILDER(Name("Twml>SparseLinearBackwardApply").Device(DEVICE_CPU),
                        SparseLinearBackwardApplyOp);

}  // namespace
}  // namespace twml
