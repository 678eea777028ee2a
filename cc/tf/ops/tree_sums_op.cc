#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>TreeSums")
    .Input("x: float")
    .Input("ensembles: int64")
    .Input("features: int32")
    .Input("thresholds: float")
    .Input("missing_left: uint8")
    .Input("children: int32")
    .Input("values: float")
    .Input("roots: int32")
    .Output("sums: float")
    .Attr("max_depth: int")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
      c->set_output(0, c->Vector(c->Dim(x, 0)));
      return absl::OkStatus();
    })
    .Doc("Sums of the leaves of decision trees; see cc/core/tree_sums.h.");

}  // namespace twml
