#include "cc/tf/ops/shapes.h"

namespace twml {

// One op for every optimizer: `rule` names an entry of kUpdateRules (cc/core/update_rules.h), which
// fixes the number and meaning of slots and hyper. var is float32, or bfloat16 under stochastic
// rounding, whose random bits follow from seed, the row's id and the column. hogwild: concurrent
// steps may update the same rows at once, without waiting for each other; some updates may be lost.
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
    .Doc("Updates the rows `ids` of var and its slots with the gradient `rows`, in place.");

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
    .Doc("SparseLinearWeightsGrad and ApplyRows in one pass; the gradient is never stored.");

}  // namespace twml
