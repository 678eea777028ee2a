#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>OnlineStandardize")
    .Input("ids: T")
    .Input("values: float")
    .Input("moments: resource")
    .Input("bias: num_bias * resource")
    .Input("training: bool")
    .Output("output: float")
    .Output("scale: float")
    .Attr("T: {int32, int64}")
    .Attr("num_bias: int >= 0")
    .Attr("epsilon: float")
    .Attr("clip: float")
    .Attr("decay: float")
    .Attr("nonfinite: {'error', 'zero'}")
    .SetIsStateful()
    .SetShapeFn(TwoPerEntryShape)
    .Doc(
        "output[k] = clip((values[k] - mean) / sd, -clip, clip) + bias[ids[k]] with (count, mean, "
        "M2) = moments[ids[k]], after the batch went into them if training. bias: one variable, or "
        "none. scale[k]: the derivative by values[k].");

}  // namespace twml
