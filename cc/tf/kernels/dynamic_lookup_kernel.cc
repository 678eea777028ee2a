#include <algorithm>
#include <string>
#include <vector>

#include "cc/core/dynamic_lookup.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

using tensorflow::DataType;

// The base of both ops. Input 0 is ids, and the next ones are the variables of the state.
class DynamicLookupKernel : public Kernel {
 public:
  explicit DynamicLookupKernel(OpKernelConstruction* ctx) : Kernel(ctx) {
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

 protected:
  static constexpr int kFirst = 1, kVariables = 6;
  static constexpr const char* kNames[kVariables] = {"keys",  "last_used", "counts",
                                                     "index", "sketch",    "header"};
  static constexpr DataType kDTypes[kVariables] = {tensorflow::DT_INT64, tensorflow::DT_INT64,
                                                   tensorflow::DT_INT64, tensorflow::DT_INT32,
                                                   tensorflow::DT_UINT8, tensorflow::DT_INT64};

  // Locks `count` variables, of which the first ones are the state, and checks these.
  static absl::Status Lock(OpKernelContext* ctx, int count, Access access, LockedTables* state) {
    TF_RETURN_IF_ERROR(state->Add(ctx, kFirst, count, access));
    if (!state->distinct()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the state must be ", count, " different variables"));
    }
    state->Lock();
    for (int i = 0; i < kVariables; ++i) {
      const Tensor& t = state->tensor(i);
      if (!t.IsInitialized()) {
        return absl::FailedPreconditionError(absl::StrCat(kNames[i], " is not initialized"));
      }
      if (t.dtype() != kDTypes[i]) {
        return absl::InvalidArgumentError(
            absl::StrCat(kNames[i], " must be ", tensorflow::DataTypeString(kDTypes[i]), ", got ",
                         tensorflow::DataTypeString(t.dtype())));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status MutableView(OpKernelContext* ctx, LockedTables* state,
                                  MutableDynamicRows* view) {
    TF_RETURN_IF_ERROR(View(ctx, state, 0, &view->keys));
    TF_RETURN_IF_ERROR(View(ctx, state, 1, &view->last_used));
    TF_RETURN_IF_ERROR(View(ctx, state, 2, &view->counts));
    TF_RETURN_IF_ERROR(View(ctx, state, 3, &view->index));
    TF_RETURN_IF_ERROR(View(ctx, state, 4, &view->sketch));
    return View(ctx, state, 5, &view->header);
  }

  static absl::Status Scalar(OpKernelContext* ctx, int i, const char* name, int64_t* value) {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(i), 0, name)));
    *value = ctx->input(i).scalar<int64_t>()();
    return absl::OkStatus();
  }

  DynamicLookupOptions options_;

 private:
  template <class T>
  static absl::Status View(OpKernelContext* ctx, LockedTables* state, int i, Span<T>* view) {
    T* data = nullptr;
    TF_RETURN_IF_ERROR(state->MutableData(ctx, i, &data));
    *view = {data, state->tensor(i).NumElements()};
    return absl::OkStatus();
  }
};

class DynamicLookupOp : public DynamicLookupKernel {
 public:
  using DynamicLookupKernel::DynamicLookupKernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& ids = ctx->input(0);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(kFirst + kVariables), 0, "training")));
    const bool training = ctx->input(kFirst + kVariables).scalar<bool>()();
    DynamicLookupOptions options = options_;
    TF_RETURN_IF_ERROR(Scalar(ctx, kFirst + kVariables + 1, "pinned", &options.pinned));
    Tensor* rows;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, ids.shape(), &rows));
    LockedTables state;
    TF_RETURN_IF_ERROR(Lock(ctx, kVariables, training ? Access::kUpdate : Access::kRead, &state));
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
    TF_RETURN_IF_ERROR(MutableView(ctx, &state, &view));
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
};

// The lookup of processes that do not wait for each other, in training. Lookups are numbered:
// `base` plus the number of lookups. The last variable, new_rows int64 [1 + E, 2], has the number
// of the last lookup and `base`, and then each row that got a new id and the number of the lookup
// in which it did, unless a process knows that the row has begun anew everywhere.
class SharedDynamicLookupOp : public DynamicLookupKernel {
 public:
  using DynamicLookupKernel::DynamicLookupKernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    constexpr int kNewRows = kVariables, kScalars = kFirst + kVariables + 1;
    const Tensor& ids = ctx->input(0);
    int64_t base, begun;
    DynamicLookupOptions options = options_;
    TF_RETURN_IF_ERROR(Scalar(ctx, kScalars, "base", &base));
    TF_RETURN_IF_ERROR(Scalar(ctx, kScalars + 1, "begun", &begun));
    TF_RETURN_IF_ERROR(Scalar(ctx, kScalars + 2, "pinned", &options.pinned));
    Tensor* rows;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, ids.shape(), &rows));
    LockedTables state;
    TF_RETURN_IF_ERROR(Lock(ctx, kVariables + 1, Access::kUpdate, &state));
    const Tensor known = state.tensor(kNewRows);
    if (!known.IsInitialized()) {
      return absl::FailedPreconditionError("new_rows is not initialized");
    }
    if (known.dtype() != tensorflow::DT_INT64 || known.dims() != 2 || known.dim_size(0) < 1 ||
        known.dim_size(1) != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("new_rows must be int64 [1 + E, 2], got ", known.DebugString(0)));
    }
    const int64_t* const pairs = known.flat<int64_t>().data();
    if (pairs[1] != base) {
      return absl::FailedPreconditionError(
          absl::StrCat("the rows of ids have been restored since base was read: expected base ",
                       pairs[1], ", got ", base));
    }
    MutableDynamicRows view;
    TF_RETURN_IF_ERROR(MutableView(ctx, &state, &view));
    // After the state has changed nothing may fail: the new rows would be lost.
    const int64_t most = known.dim_size(0) + ids.NumElements();
    Tensor next;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_INT64, TensorShape({most, 2}), &next));
    std::vector<int64_t> reset, sorted;
    sorted.reserve(ids.NumElements());
    TF_RETURN_IF_ERROR(ToAbslStatus(AssignDynamicRows(
        SpanOf<int64_t>(ids), view, options, IntraOp(ctx), rows->flat<int64_t>().data(), &reset)));
    sorted.assign(reset.begin(), reset.end());
    std::sort(sorted.begin(), sorted.end());
    // Unsigned, because any number may be the base.
    const auto number =
        static_cast<int64_t>(static_cast<uint64_t>(base) + static_cast<uint64_t>(view.header[0]));
    int64_t* out = next.flat<int64_t>().data();
    const auto write = [&out](int64_t first, int64_t second) {
      *out++ = first;
      *out++ = second;
    };
    write(number, base);
    for (int64_t i = 1; i < known.dim_size(0); ++i) {
      const int64_t row = pairs[2 * i], given = pairs[2 * i + 1];
      if (given <= begun || std::binary_search(sorted.begin(), sorted.end(), row)) continue;
      write(row, given);
    }
    for (const int64_t row : reset) write(row, number);
    const int64_t size = (out - next.flat<int64_t>().data()) / 2;
    *state.var(kNewRows)->tensor() = next.Slice(0, size);
    ctx->set_output(1, next.Slice(0, size));
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("Twml>DynamicLookup").Device(DEVICE_CPU), DynamicLookupOp);
REGISTER_KERNEL_BUILDER(Name("Twml>SharedDynamicLookup").Device(DEVICE_CPU), SharedDynamicLookupOp);

}  // namespace
}  // namespace twml
