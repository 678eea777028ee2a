#include <algorithm>

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

template <class Id>
class JoinBatchesOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    OpInputList ids, values, row_splits, gradients;
    TF_RETURN_IF_ERROR(ctx->input_list("ids", &ids));
    TF_RETURN_IF_ERROR(ctx->input_list("values", &values));
    TF_RETURN_IF_ERROR(ctx->input_list("row_splits", &row_splits));
    TF_RETURN_IF_ERROR(ctx->input_list("gradients", &gradients));
    TF_RETURN_IF_ERROR(ToAbslStatus(Check(ids, values, row_splits, gradients)));
    TF_RETURN_IF_ERROR(Concatenate<Id>(ctx, ids, 0, "joined_ids"));
    TF_RETURN_IF_ERROR(Concatenate<float>(ctx, values, 1, "joined_values"));
    TF_RETURN_IF_ERROR(JoinRowSplits(ctx, row_splits));
    return JoinGradients(ctx, gradients);
  }

  static Status Check(const OpInputList& ids, const OpInputList& values,
                      const OpInputList& row_splits, const OpInputList& gradients) {
    if (gradients.size() != 0 && gradients.size() != ids.size()) {
      return Invalid("gradients must be 0 or ", ids.size(), " tensors, got ", gradients.size());
    }
    for (int i = 0; i < ids.size(); ++i) {
      TWML_RETURN_IF_ERROR(CheckRank(ids[i], 1, "ids"));
      TWML_RETURN_IF_ERROR(CheckRank(values[i], 1, "values"));
      TWML_RETURN_IF_ERROR(CheckRank(row_splits[i], 1, "row_splits"));
      if (row_splits[i].NumElements() != 0) continue;
      return CheckRowSplits(SpanOf<int64_t>(row_splits[i]), 0);
    }
    for (int i = 0; i < gradients.size(); ++i) {
      TWML_RETURN_IF_ERROR(CheckRank(gradients[i], 2, "gradients"));
      if (gradients[i].dim_size(1) == gradients[0].dim_size(1)) continue;
      return Invalid("gradients must have the same number of columns, got ",
                     gradients[0].dim_size(1), " and ", gradients[i].dim_size(1));
    }
    return Status();
  }

  static int64_t Items(const OpInputList& parts) {
    int64_t items = 0;  // their bytes are in memory, so that the sum does not overflow
    for (const Tensor& part : parts) items += part.NumElements();
    return items;
  }

  template <class T>
  static absl::Status Concatenate(OpKernelContext* ctx, const OpInputList& parts, int output,
                                  const char* name) {
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, output, name, {Items(parts)}, &out));
    T* to = out->flat<T>().data();
    for (const Tensor& part : parts) {
      const Span<const T> from = SpanOf<T>(part);
      to = std::copy(from.begin(), from.end(), to);
    }
    return absl::OkStatus();
  }

  static absl::Status JoinRowSplits(OpKernelContext* ctx, const OpInputList& parts) {
    Tensor* out = nullptr;
    const int64_t items = Items(parts) - parts.size() + 1;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 2, "joined_row_splits", {items}, &out));
    int64_t* to = out->flat<int64_t>().data();
    *to++ = SpanOf<int64_t>(parts[0])[0];
    uint64_t before = 0;  // unsigned: any numbers may be added, and their users check the sums
    for (const Tensor& part : parts) {
      const Span<const int64_t> splits = SpanOf<int64_t>(part);
      for (int64_t i = 1; i < splits.size(); ++i) {
        *to++ = static_cast<int64_t>(before + static_cast<uint64_t>(splits[i]));
      }
      before += static_cast<uint64_t>(splits[splits.size() - 1]);
    }
    return absl::OkStatus();
  }

  static absl::Status JoinGradients(OpKernelContext* ctx, const OpInputList& parts) {
    int64_t rows = 0;
    for (const Tensor& part : parts) rows += part.dim_size(0);
    Tensor* out = nullptr;
    const int64_t columns = parts.size() == 0 ? 0 : parts[0].dim_size(1);
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 3, "joined_gradients", {rows, columns}, &out));
    float* to = out->flat<float>().data();
    for (const Tensor& part : parts) {
      const float share = static_cast<float>(part.dim_size(0)) / static_cast<float>(rows);
      for (const float x : SpanOf<float>(part)) *to++ = x * share;
    }
    return absl::OkStatus();
  }
};

#define TWML_REGISTER(Id)                                                                        \
  REGISTER_KERNEL_BUILDER(Name("Twml>PackEntries").Device(DEVICE_CPU).TypeConstraint<Id>("T"),   \
                          PackEntriesOp<Id>);                                                    \
  REGISTER_KERNEL_BUILDER(Name("Twml>UnpackEntries").Device(DEVICE_CPU).TypeConstraint<Id>("T"), \
                          UnpackEntriesOp<Id>);                                                  \
  REGISTER_KERNEL_BUILDER(Name("Twml>JoinBatches").Device(DEVICE_CPU).TypeConstraint<Id>("T"),   \
                          JoinBatchesOp<Id>);                                                    \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("Twml>GroupPackedEntries").Device(DEVICE_CPU).TypeConstraint<Id>("T"),                \
      GroupPackedEntriesOp<Id>);
TWML_REGISTER(int32_t)
TWML_REGISTER(int64_t)
#undef TWML_REGISTER

}  // namespace
}  // namespace twml
