#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>MaxNorm")
    .Input("ids: T")
    .Input("values: float")
    .Input("max_abs: resource")
    .Input("bias: num_bias * resource")
    .Input("training: bool")
    .Input("groups: num_groups * variant")
    .Output("output: float")
    .Output("scale: float")
    .Attr("T: {int32, int64}")
    .Attr("num_bias: int >= 0")
    .Attr("num_groups: int >= 0 = 0")
    .Attr("epsilon: float")
    .Attr("nonfinite: {'error', 'zero'}")
    .Attr("decay: float = 1.0")
    .SetIsStateful()
    .SetShapeFn(TwoPerEntryShape)
    .Doc(
        "output[k] = clip(values[k] / max(m, epsilon), -1, 1) + bias[ids[k]] with m = "
        "max_abs[ids[k]]. In training, max_abs of each feature in the batch is first multiplied by "
        "decay and then raised to the batch's largest |value| of the feature. bias is one variable "
        "or none. scale[k] is the derivative of output[k] with respect to values[k].");

}  // namespace twml
