#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>GatherDot")
    .Input("table: float")
    .Input("positions: int64")
    .Input("vectors: float")
    .Output("products: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle positions;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &positions));
      c->set_output(0, positions);
      return absl::OkStatus();
    })
    .Doc("Dot products of gathered rows with a vector; see cc/core/gather_dot.h.");

}  // namespace twml
