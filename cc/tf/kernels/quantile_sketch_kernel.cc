#include <memory>

#include "cc/core/quantile_sketch.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

using S = QuantileSketchState;

constexpr int kState = 6;

absl::Status ReadState(OpKernelContext* ctx, int first, std::unique_ptr<QuantileSketch>* sketch) {
  const auto in = [&](int i) -> const Tensor& { return ctx->input(first + i); };
  const S state{SpanOf<double>(in(0)),  SpanOf<int64_t>(in(1)), SpanOf<double>(in(2)),
                SpanOf<int64_t>(in(3)), SpanOf<int32_t>(in(4)), SpanOf<float>(in(5))};
  return ToAbslStatus(QuantileSketch::FromState(state, IntraOpWithDenormals(ctx), sketch));
}

absl::Status WriteState(OpKernelContext* ctx, const QuantileSketch& sketch) {
  const auto sizes = sketch.Sizes();
  Tensor* out[kState];
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "config", {S::kConfig}, &out[0]));
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, "feature_ids", {sizes.features}, &out[1]));
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 2, "totals", {sizes.features, S::kTotals}, &out[2]));
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 3, "counters", {sizes.features, S::kCounters}, &out[3]));
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 4, "runs", {sizes.runs, S::kRun}, &out[4]));
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 5, "items", {sizes.items}, &out[5]));
  sketch.Write({MutableSpanOf<double>(out[0]), MutableSpanOf<int64_t>(out[1]),
                MutableSpanOf<double>(out[2]), MutableSpanOf<int64_t>(out[3]),
                MutableSpanOf<int32_t>(out[4]), MutableSpanOf<float>(out[5])});
  return absl::OkStatus();
}

// The base of the ops on a sketch, whose state are the first kState inputs.
class SketchOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) final {
    tensorflow::port::ScopedDontFlushDenormal ieee;
    std::unique_ptr<QuantileSketch> sketch;
    TF_RETURN_IF_ERROR(ReadState(ctx, 0, &sketch));
    return RunOnSketch(ctx, sketch.get());
  }
  virtual absl::Status RunOnSketch(OpKernelContext* ctx, QuantileSketch* sketch) = 0;
};

class SketchUpdateOp : public SketchOp {
 public:
  explicit SketchUpdateOp(OpKernelConstruction* ctx) : SketchOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_weights", &has_weights_));
  }

 private:
  absl::Status RunOnSketch(OpKernelContext* ctx, QuantileSketch* sketch) override {
    const Tensor &ids = ctx->input(kState), &values = ctx->input(kState + 1);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ids, 1, "ids")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(values, 1, "values")));
    const Tensor& weights_in = ctx->input(kState + 2);
    if (has_weights_ && weights_in.NumElements() != ids.NumElements()) {
      return ToAbslStatus(Invalid("weights must have ", ids.NumElements(),
                                  " items, one for each id, got ", weights_in.NumElements()));
    }
    const auto weights = has_weights_ ? SpanOf<float>(weights_in) : Span<const float>();
    TF_RETURN_IF_ERROR(ToAbslStatus(sketch->Update(SpanOf<int64_t>(ids), SpanOf<float>(values),
                                                   weights, IntraOpWithDenormals(ctx))));
    return WriteState(ctx, *sketch);
  }

  bool has_weights_;
};

class MergeOp : public SketchOp {
 public:
  using SketchOp::SketchOp;

 private:
  absl::Status RunOnSketch(OpKernelContext* ctx, QuantileSketch* sketch) override {
    std::unique_ptr<QuantileSketch> other;
    TF_RETURN_IF_ERROR(ReadState(ctx, kState, &other));
    TF_RETURN_IF_ERROR(ToAbslStatus(sketch->Merge(*other, IntraOpWithDenormals(ctx))));
    return WriteState(ctx, *sketch);
  }
};

class QuantilesOp : public SketchOp {
 public:
  using SketchOp::SketchOp;

 private:
  absl::Status RunOnSketch(OpKernelContext* ctx, QuantileSketch* sketch) override {
    const Tensor &ids = ctx->input(kState), &probabilities = ctx->input(kState + 1);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ids, 1, "ids")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(probabilities, 1, "probabilities")));
    Tensor* out;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "quantiles",
                                      {ids.NumElements(), probabilities.NumElements()}, &out));
    return ToAbslStatus(sketch->Quantiles(SpanOf<int64_t>(ids), SpanOf<double>(probabilities),
                                          IntraOpWithDenormals(ctx), out->flat<float>().data()));
  }
};

REGISTER_KERNEL_BUILDER(Name("Twml>QuantileSketchUpdate").Device(DEVICE_CPU), SketchUpdateOp);
REGISTER_KERNEL_BUILDER(Name("Twml>QuantileSketchMerge").Device(DEVICE_CPU), MergeOp);
REGISTER_KERNEL_BUILDER(Name("Twml>QuantileSketchQuantiles").Device(DEVICE_CPU), QuantilesOp);

}  // namespace
}  // namespace twml
