#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>FindKeys")
    .Input("known: int64")
    .Input("keys: int64")
    .Output("positions: int64")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc("Positions of keys in sorted keys; see cc/core/find_keys.h.");

}  // namespace twml
