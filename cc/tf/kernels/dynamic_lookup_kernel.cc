#include <algorithm>
#include <string>

#include "cc/core/dynamic_lookup.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

using tensorflow::DataType;

class DynamicLookupOp : public Kernel {
 public:
  explicit DynamicLookupOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    std::string eviction;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("min_count", &options_.min_count));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("eviction", &eviction));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_age", &options_.max_age));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &options_.seed));
    options_.eviction = eviction == "lru"   ? Eviction::kLru
                        : eviction == "lfu" ? Eviction::kLfu
                        : eviction == "age" ? Eviction::kAge
                                            : Eviction::kNone;
  }

 private:
  static constexpr int kFirst = 1, kVariables = 6;
  static constexpr const char* kNames[kVariables] = {"keys",  "last_used", "counts",
                                                     "index", "sketch",    "header"};
  static constexpr DataType kDTypes[kVariables] = {tensorflow::DT_INT64, tensorflow::DT_INT64,
                                                   tensorflow::DT_INT64, tensorflow::DT_INT32,
                                                   tensorflow::DT_UINT8, tensorflow::DT_INT64};

  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& ids = ctx->input(0);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(kFirst + kVariables), 0, "training")));
    const bool training = ctx->input(kFirst + kVariables).scalar<bool>()();
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(kFirst + kVariables + 1), 0, "pinned")));
    DynamicLookupOptions options = options_;
    options.pinned = ctx->input(kFirst + kVariables + 1).scalar<int64_t>()();
    Tensor* rows;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, ids.shape(), &rows));
    LockedTables state;
    TF_RETURN_IF_ERROR(
        state.Add(ctx, kFirst, kVariables, training ? Access::kUpdate : Access::kRead));
    if (!state.distinct()) {
      return absl::InvalidArgumentError("the state must be six different variables");
    }
    state.Lock();
    for (int i = 0; i < kVariables; ++i) {
      const Tensor& t = state.tensor(i);
      if (!t.IsInitialized()) {
        return absl::FailedPreconditionError(absl::StrCat(kNames[i], " is not initialized"));
      }
      if (t.dtype() != kDTypes[i]) {
        return absl::InvalidArgumentError(
            absl::StrCat(kNames[i], " must be ", tensorflow::DataTypeString(kDTypes[i]), ", got ",
                         tensorflow::DataTypeString(t.dtype())));
      }
    }
    if (!training) {
      const ConstDynamicRows view = {
          SpanOf<int64_t>(state.tensor(0)), SpanOf<int64_t>(state.tensor(1)),
          SpanOf<int64_t>(state.tensor(2)), SpanOf<int32_t>(state.tensor(3)),
          SpanOf<uint8_t>(state.tensor(4)), SpanOf<int64_t>(state.tensor(5))};
      TF_RETURN_IF_ERROR(ToAbslStatus(FindDynamicRows(SpanOf<int64_t>(ids), view, options,
                                                      IntraOp(ctx), rows->flat<int64_t>().data())));
      Tensor* none;
      return AllocateOutput(ctx, 1, "reset", {0}, &none);
    }
    MutableDynamicRows view;
    TF_RETURN_IF_ERROR(View(ctx, &state, 0, &view.keys));
    TF_RETURN_IF_ERROR(View(ctx, &state, 1, &view.last_used));
    TF_RETURN_IF_ERROR(View(ctx, &state, 2, &view.counts));
    TF_RETURN_IF_ERROR(View(ctx, &state, 3, &view.index));
    TF_RETURN_IF_ERROR(View(ctx, &state, 4, &view.sketch));
    TF_RETURN_IF_ERROR(View(ctx, &state, 5, &view.header));
    // After the state has changed nothing may fail: the rows to reset would be lost.
    Tensor most;
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(tensorflow::DT_INT64, TensorShape({ids.NumElements()}), &most));
    std::vector<int64_t> reset;
    TF_RETURN_IF_ERROR(ToAbslStatus(AssignDynamicRows(
        SpanOf<int64_t>(ids), view, options, IntraOp(ctx), rows->flat<int64_t>().data(), &reset)));
    std::copy(reset.begin(), reset.end(), most.flat<int64_t>().data());
    ctx->set_output(1, most.Slice(0, static_cast<int64_t>(reset.size())));
    return absl::OkStatus();
  }

  template <class T>
  static absl::Status View(OpKernelContext* ctx, LockedTables* state, int i, Span<T>* view) {
    T* data = nullptr;
    TF_RETURN_IF_ERROR(state->MutableData(ctx, i, &data));
    *view = {data, state->tensor(i).NumElements()};
    return absl::OkStatus();
  }

  DynamicLookupOptions options_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>DynamicLookup").Device(DEVICE_CPU), DynamicLookupOp);

}  // namespace
}  // namespace twml
