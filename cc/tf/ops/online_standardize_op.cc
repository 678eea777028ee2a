#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>OnlineStandardize")
    .Input("ids: T")
    .Input("values: float")
    .Input("moments: resource")
    .Input("bias: num_bias * resource")
    .Input("training: bool")
    .Input("groups: num_groups * variant")
    .Output("output: float")
    .Output("scale: float")
    .Attr("T: {int32, int64}")
    .Attr("num_bias: int >= 0")
    .Attr("num_groups: int >= 0 = 0")
    .Attr("epsilon: float")
    .Attr("clip: float")
    .Attr("decay: float")
    .Attr("nonfinite: {'error', 'zero'}")
    .SetIsStateful()
    .SetShapeFn(TwoPerEntryShape)
    .Doc(
        "output[k] = clip((values[k] - mean) / sd, -clip, clip) + bias[ids[k]] with (count, mean, "
        "M2) = moments[ids[k]] and sd = max(sqrt(M2 / count), epsilon). In training, the batch is "
        "first added to the moments. bias is one variable or none. scale[k] is the derivative of "
        "output[k] with respect to values[k].");

}  // namespace twml
