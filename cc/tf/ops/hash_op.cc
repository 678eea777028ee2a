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
    .Doc("Hashes (salt, id) to 64 bits and keeps the upper `bits` bits: an id in [0, 2^bits).");

}  // namespace twml
