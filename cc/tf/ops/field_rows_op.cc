#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>FieldRows")
    .Input("ids: T")
    .Output("rows: int64")
    .Output("row_splits: int64")
    .Attr("T: {int32, int64}")
    .Attr("num_rows: list(int) >= 1")
    .Attr("first_row: int = 0")
    .Attr("pooled: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> num_rows;
      TF_RETURN_IF_ERROR(c->GetAttr("num_rows", &num_rows));
      bool pooled;
      TF_RETURN_IF_ERROR(c->GetAttr("pooled", &pooled));
      ShapeHandle ids;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &ids));
      const auto fields = static_cast<int64_t>(num_rows.size());
      DimensionHandle width, entries, splits;
      TF_RETURN_IF_ERROR(c->WithValue(c->Dim(ids, 1), fields, &width));
      TF_RETURN_IF_ERROR(c->Multiply(c->Dim(ids, 0), fields, &entries));
      TF_RETURN_IF_ERROR(c->Add(pooled ? c->Dim(ids, 0) : entries, 1, &splits));
      c->set_output(0, c->Vector(entries));
      c->set_output(1, c->Vector(splits));
      return absl::OkStatus();
    })
    .Doc(
        "The rows of ids [B, F] of fields in one table, as a CSR batch with a row for each id, or, "
        "if it is pooled, for each row of ids; see cc/core/field_rows.h.");

}  // namespace twml
