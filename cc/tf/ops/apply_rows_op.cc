#include "cc/tf/ops/shapes.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace twml {

// One op serves all optimizers: `rule` names an entry of kUpdateRules (cc/core/update_rules.h),
// which determines the number and the meaning of slots and hyper. var is float32 or bfloat16.
// bfloat16 uses stochastic rounding, whose random bits depend on seed, the id of the row and the
// column. With hogwild, concurrent steps may update the same rows without waiting for each other,
// and some updates may be lost.
REGISTER_OP("Twml>ApplyRows")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
    .Input("ids: T")
    .Input("rows: float")
    .Input("hyper: num_hyper * float")
    .Input("seed: int64")
    .Attr("T: {int32, int64}")
    .Attr("num_slots: int >= 0")
    .Attr("num_hyper: int >= 1")
    .Attr("rule: string")
    .Attr("hogwild: bool = false")
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc(
        "Updates the rows `ids` [K] of var [N, D] and its slots in place with the gradient rows "
        "`rows` [K, D]. Rows of repeated ids are summed first.");

// The output is opaque. One grouping serves all tables of as many rows that are multiplied by the
// same batch. `var` is one of them. An op with a resource among its inputs is never evaluated
// before the graph runs, so the output, which cannot be saved, is never a constant of a graph.
REGISTER_OP("Twml>GroupBatch")
    .Input("var: resource")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Output("groups: variant")
    .Attr("T: {int32, int64}")
    .Attr("binary: bool = false")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Groups the entries of a batch by id, for SparseLinearBackwardApply on var [N, D] and on "
        "other variables with N rows.");

REGISTER_OP("Twml>SparseLinearBackwardApply")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
    .Input("groups: variant")
    .Input("grad: float")
    .Input("hyper: num_hyper * float")
    .Input("seed: int64")
    .Attr("num_slots: int >= 0")
    .Attr("num_hyper: int >= 1")
    .Attr("rule: string")
    .Attr("hogwild: bool = false")
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc(
        "SparseLinearWeightsGrad and ApplyRows in one pass, without storing the gradient. `groups` "
        "is the output of GroupBatch for a batch with ids in [0, rows of var).");

}  // namespace twml
