#include "cc/tf/ops/shapes.h"

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

REGISTER_OP("Twml>SparseLinearBackwardApply")
    .Input("var: resource")
    .Input("slots: num_slots * resource")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("grad: float")
    .Input("hyper: num_hyper * float")
    .Input("seed: int64")
    .Attr("T: {int32, int64}")
    .Attr("num_slots: int >= 0")
    .Attr("num_hyper: int >= 1")
    .Attr("rule: string")
    .Attr("hogwild: bool = false")
    .Attr("binary: bool = false")
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("SparseLinearWeightsGrad and ApplyRows in one pass, without storing the gradient.");

}  // namespace twml
