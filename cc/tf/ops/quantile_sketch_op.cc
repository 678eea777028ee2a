#include "cc/core/quantile_sketch.h"
#include "cc/tf/ops/shapes.h"

namespace twml {
namespace {

using S = QuantileSketchState;
constexpr int kState = 6;

// config [4], feature_ids [F], totals [F, 7], counters [F, 4], runs [R, 2], items [I]. F, R and I
// are known only after the op has run.
absl::Status StateOut(InferenceContext* c) {
  const DimensionHandle features = c->UnknownDim();
  c->set_output(0, c->Vector(S::kConfig));
  c->set_output(1, c->Vector(features));
  c->set_output(2, c->Matrix(features, S::kTotals));
  c->set_output(3, c->Matrix(features, S::kCounters));
  c->set_output(4, c->Matrix(c->UnknownDim(), S::kRun));
  c->set_output(5, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Twml>QuantileSketchUpdate")
    .Input("config: double")
    .Input("feature_ids: int64")
    .Input("totals: double")
    .Input("counters: int64")
    .Input("runs: int32")
    .Input("items: float")
    .Input("ids: int64")
    .Input("values: float")
    .Input("weights: float")
    .Output("new_config: double")
    .Output("new_feature_ids: int64")
    .Output("new_totals: double")
    .Output("new_counters: int64")
    .Output("new_runs: int32")
    .Output("new_items: float")
    .Attr("has_weights: bool")
    .SetShapeFn(StateOut)
    .Doc("Adds values[k] to feature ids[k] of a quantile sketch and returns its new state.");

REGISTER_OP("Twml>QuantileSketchMerge")
    .Input("config: double")
    .Input("feature_ids: int64")
    .Input("totals: double")
    .Input("counters: int64")
    .Input("runs: int32")
    .Input("items: float")
    .Input("other_config: double")
    .Input("other_feature_ids: int64")
    .Input("other_totals: double")
    .Input("other_counters: int64")
    .Input("other_runs: int32")
    .Input("other_items: float")
    .Output("new_config: double")
    .Output("new_feature_ids: int64")
    .Output("new_totals: double")
    .Output("new_counters: int64")
    .Output("new_runs: int32")
    .Output("new_items: float")
    .SetShapeFn(StateOut)
    .Doc("Merges two quantile sketches: the state of a sketch that has seen all values of both.");

REGISTER_OP("Twml>QuantileSketchQuantiles")
    .Input("config: double")
    .Input("feature_ids: int64")
    .Input("totals: double")
    .Input("counters: int64")
    .Input("runs: int32")
    .Input("items: float")
    .Input("ids: int64")
    .Input("probabilities: double")
    .Output("quantiles: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, probabilities;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(kState), 1, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(kState + 1), 1, &probabilities));
      c->set_output(0, c->Matrix(c->Dim(ids, 0), c->Dim(probabilities, 0)));
      return absl::OkStatus();
    })
    .Doc(
        "quantiles[q, i] is the smallest value of feature ids[q] whose rank is at least "
        "probabilities[i] times the total weight, or NaN for a feature without values.");

}  // namespace twml
