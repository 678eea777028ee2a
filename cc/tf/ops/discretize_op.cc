#include "cc/tf/ops/shapes.h"

namespace twml {
namespace {

// ids [K], values [K] ([0] if binary), row_splits [B + 1] -> ids [L], values [L], row_splits [B +
// 1]. L = K unless entries may be dropped or inputs are kept.
absl::Status EntriesShape(InferenceContext* c) {
  ShapeHandle ids, splits;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &splits));
  std::string missing, unknown;
  TF_RETURN_IF_ERROR(c->GetAttr("missing", &missing));
  TF_RETURN_IF_ERROR(c->GetAttr("unknown", &unknown));
  bool keep_inputs;
  TF_RETURN_IF_ERROR(c->GetAttr("keep_inputs", &keep_inputs));
  if (missing == "drop" || unknown == "drop" || keep_inputs) ids = c->Vector(c->UnknownDim());
  c->set_output(0, ids);
  c->set_output(1, ids);
  c->set_output(2, splits);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Twml>PercentileDiscretize")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("feature_ids: int64")
    .Input("boundaries: float")
    .Input("boundary_splits: int64")
    .Output("output_ids: int64")
    .Output("output_values: float")
    .Output("output_row_splits: int64")
    .Attr("T: {int32, int64}")
    .Attr("side: {'left', 'right'}")
    .Attr("missing: {'bucket', 'drop'}")
    .Attr("unknown: {'pass', 'drop', 'error'}")
    .Attr("pass_through_bits: int")
    .Attr("binary: bool = false")
    .Attr("keep_inputs: bool = false")
    .SetShapeFn(EntriesShape)
    .Doc(
        "Maps each entry (feature, value) to (first id of the feature + bucket of the value, 1). "
        "The boundaries of feature feature_ids[f] are items boundary_splits[f] to "
        "boundary_splits[f + 1] of boundaries.");

REGISTER_OP("Twml>HashingDiscretize")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("feature_ids: int64")
    .Input("boundaries: float")
    .Input("boundary_splits: int64")
    .Output("output_ids: int64")
    .Output("output_values: float")
    .Output("output_row_splits: int64")
    .Attr("T: {int32, int64}")
    .Attr("side: {'left', 'right'}")
    .Attr("missing: {'bucket', 'drop'}")
    .Attr("unknown: {'pass', 'drop', 'error'}")
    .Attr("output_bits: int")
    .Attr("binary: bool = false")
    .Attr("keep_inputs: bool = false")
    .SetShapeFn(EntriesShape)
    .Doc(
        "PercentileDiscretize with ids that are hashes of (feature, bucket) in [0, "
        "2^output_bits).");

}  // namespace twml
