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

// The outputs are opaque and exist in one process only, so they cannot be constants of a graph. See
// twml_ops/ops/_shared_groups.py.
REGISTER_OP("Twml>GroupIds")
    .Input("ids: T")
    .Input("input_dim: int64")
    .Output("groups: variant")
    .Attr("T: {int32, int64}")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Groups ids in [0, input_dim), for ops that need the same ids grouped with different "
        "values.");

REGISTER_OP("Twml>GroupBatch")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("input_dim: int64")
    .Input("groups: num_groups * variant")
    .Output("grouped: variant")
    .Attr("T: {int32, int64}")
    .Attr("num_groups: int >= 0")
    .Attr("binary: bool = false")
    .Attr("field_starts: list(int) = []")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Groups the entries of a batch by id, for the gradients and updates of all tables that are "
        "multiplied by it. `groups` is the output of GroupIds for the same ids, or none. With F + "
        "1 "
        "field_starts, the id of entry k is one of field f = k mod F, whose ids are in "
        "[field_starts[f], field_starts[f + 1]).");

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
