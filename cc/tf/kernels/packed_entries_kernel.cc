#include "cc/core/packed_entries.h"
#include "cc/tf/kernels/batch_groups.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

template <class Id>
class PackEntriesOp : public Kernel {
 public:
  explicit PackEntriesOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("parts", &parts_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("input_dim", &input_dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("deduplicate", &deduplicate_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Csr<Id> batch;
    TF_RETURN_IF_ERROR(
        ToAbslStatus(CsrOf<Id>(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch)));
    absl::Status allocated;
    const auto allocate = [&](int64_t part, int64_t bytes) -> uint8_t* {
      Tensor* out = nullptr;
      allocated = AllocateOutput(ctx, static_cast<int>(part), "packed", {bytes}, &out);
      return allocated.ok() ? out->flat<uint8_t>().data() : nullptr;
    };
    TF_RETURN_IF_ERROR(
        ToAbslStatus(PackEntries(batch, input_dim_, parts_, deduplicate_, IntraOp(ctx), allocate)));
    return allocated;
  }

  int64_t parts_, input_dim_;
  bool binary_, deduplicate_;
};

template <class Id>
class UnpackEntriesOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(0), 1, "packed")));
    absl::Status allocated;
    const auto allocate = [&](int64_t entries, int64_t rows, bool binary) -> UnpackedEntries<Id> {
      Tensor *ids = nullptr, *values = nullptr, *row_splits = nullptr;
      allocated = AllocateOutput(ctx, 0, "ids", {entries}, &ids);
      if (allocated.ok()) {
        allocated = AllocateOutput(ctx, 1, "values", {binary ? 0 : entries}, &values);
      }
      if (allocated.ok()) allocated = AllocateOutput(ctx, 2, "row_splits", {rows + 1}, &row_splits);
      if (!allocated.ok()) return {};
      // A batch without entries has null ids, but its row_splits must be written. Null would mean a
      // failed allocation.
      Id* const to = ids->flat<Id>().data();
      return {to != nullptr ? to : &no_ids_, values->flat<float>().data(),
              row_splits->flat<int64_t>().data()};
    };
    TF_RETURN_IF_ERROR(ToAbslStatus(UnpackEntries<Id>(SpanOf<uint8_t>(ctx->input(0)), allocate)));
    return allocated;
  }

  Id no_ids_ = 0;
};

template <class Id>
class GroupPackedEntriesOp : public Kernel {
 public:
  explicit GroupPackedEntriesOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(0), 1, "packed")));
    int64_t input_dim;
    TF_RETURN_IF_ERROR(ReadInputDim(ctx, 1, &input_dim));
    return OutputGroups<Id>(ctx, [&](GroupedBatch<Id>* grouped) {
      return GroupPackedEntries(SpanOf<uint8_t>(ctx->input(0)), binary_, input_dim, IntraOp(ctx),
                                grouped);
    });
  }

  bool binary_;
};

#define TWML_REGISTER(Id)                                                                        \
  REGISTER_KERNEL_BUILDER(Name("Twml>PackEntries").Device(DEVICE_CPU).TypeConstraint<Id>("T"),   \
                          PackEntriesOp<Id>);                                                    \
  REGISTER_KERNEL_BUILDER(Name("Twml>UnpackEntries").Device(DEVICE_CPU).TypeConstraint<Id>("T"), \
                          UnpackEntriesOp<Id>);                                                  \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>GroupPackedEntries").Device(DEVICE_CPU).TypeConstraint<Id>("T"),                \
      GroupPackedEntriesOp<Id>);
TWML_REGISTER(int32_t)
TWML_REGISTER(int64_t)
#undef TWML_REGISTER

}  // namespace
}  // namespace twml
