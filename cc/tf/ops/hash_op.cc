#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>HashIds")
    .Input("ids: T")
    .Output("hashed: int64")
    .Attr("T: {int32, int64}")
    .Attr("bits: int")
    .Attr("salt: int = 0")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    })
    .Doc("A 64-bit mix of (salt, id) reduced to [0, 2^bits).");

}  // namespace twml
