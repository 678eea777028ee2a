#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>RowsToInt8")
    .Input("rows: float")
    .Input("seed: int64")
    .Output("codes: int8")
    .Output("scales: float")
    .Attr("stream: int = 0")
    .Attr("at_random: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
      c->set_output(0, rows);
      c->set_output(1, c->Vector(c->Dim(rows, 0)));
      return absl::OkStatus();
    })
    .Doc(
        "Rows as codes and a scale each; see cc/core/int8_rows.h. With at_random, the bits depend "
        "on stream and seed.");

REGISTER_OP("Twml>RowsFromInt8")
    .Input("codes: int8")
    .Input("scales: float")
    .Output("rows: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle codes, scales;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &codes));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &scales));
      c->set_output(0, codes);
      return absl::OkStatus();
    })
    .Doc("The inverse of RowsToInt8.");

}  // namespace twml
