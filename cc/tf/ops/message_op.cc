#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>MessagePort")
    .Output("address: int64")
    .Attr("host: string = 'localhost'")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(
        "Listens for messages on a host, under which peers know this process. address has the port "
        "and the secret that a peer must present.");

REGISTER_OP("Twml>ConnectMessages")
    .Input("address: int64")
    .Attr("host: string")
    .Attr("session: int")
    .Attr("seconds: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("Opens a session with the process that listens on a host, at an output of MessagePort.");

// `order` is a resource of the device, which is not read. TensorFlow runs ops with side effects one
// after the other, across all devices, unless they have resources.
REGISTER_OP("Twml>SendMessage")
    .Input("order: resource")
    .Input("message: T")
    .Attr("T: list({uint8, int8, float, bfloat16, half, double, int32, int64}) >= 1")
    .Attr("session: int")
    .Attr("number: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("Sends the elements of tensors to the ReceiveMessage of the same function and number.");

REGISTER_OP("Twml>ReceiveMessage")
    .Input("order: resource")
    .Output("message: T")
    .Attr("T: list({uint8, int8, float, bfloat16, half, double, int32, int64}) >= 1")
    .Attr("session: int")
    .Attr("number: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc("Waits for the tensors that SendMessage sends. Each output has one dimension.");

}  // namespace twml
