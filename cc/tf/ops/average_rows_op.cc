#include "cc/tf/ops/shapes.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace twml {

// What steps and average hold is described in cc/core/average_rows.h. `ids` are row numbers, which
// may repeat, or the output of GroupBatch, for its ids.
REGISTER_OP("Twml>AverageRows")
    .Input("var: resource")
    .Input("average: resource")
    .Input("steps: resource")
    .Input("ids: T")
    .Input("step: int64")
    .Input("log_momentum: double")
    .Attr("T: {int32, int64, variant}")
    .Attr("hogwild: bool = false")
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc(
        "Advances the moving averages of the rows `ids` of var [N, D], kept in average [N, D] and "
        "steps [N], in place to the end of step `step` - 1. It runs before the update of step "
        "`step`.");

}  // namespace twml
