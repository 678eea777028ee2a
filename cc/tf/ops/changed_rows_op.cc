#include "cc/tf/ops/shapes.h"

namespace twml {

// The variables are a table and others with one row for each of its rows, such as its slots. The
// first call for a variable and a consumer, any number, returns all rows and starts the record.
REGISTER_OP("Twml>TakeChangedRows")
    .Input("variables: N * resource")
    .Input("consumer: int64")
    .Output("ids: int64")
    .Output("all: bool")
    .Output("interval: int64")
    .Output("rows: dtypes")
    .Attr("N: int >= 1")
    .Attr("dtypes: list(type) >= 1")
    .Attr("copies: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Scalar());
      c->set_output(2, c->Scalar());
      for (int i = 3; i < c->num_outputs(); ++i) c->set_output(i, c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(
        "Copies the rows that changed since the interval that the consumer has kept, at one moment "
        "of the training. If all rows count as changed, `all` is true and ids is empty; without "
        "`copies` `rows` are empty then as well.");

REGISTER_OP("Twml>KeepChangedRows")
    .Input("variable: resource")
    .Input("consumer: int64")
    .Input("interval: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("The consumer has the rows of the TakeChangedRows that returned `interval`.");

REGISTER_OP("Twml>ReleaseChangedRows")
    .Input("variable: resource")
    .Input("consumer: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("Ends the record for a consumer.");

REGISTER_OP("Twml>MarkChangedRows")
    .Input("variable: resource")
    .Input("ids: T")
    .Attr("T: {int32, int64}")
    .Attr("all: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc(
        "Records that the rows `ids`, or all rows, of a table have changed. Ops of this library "
        "that write tables do it themselves.");

}  // namespace twml
