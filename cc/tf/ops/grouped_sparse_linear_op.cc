#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>GroupedSparseLinear")
    .Input("ids: num_tables * T")
    .Input("values: num_tables * float")
    .Input("row_splits: num_tables * int64")
    .Input("weights: num_tables * resource")
    .Output("outputs: num_tables * float")
    .Attr("num_tables: int >= 1")
    .Attr("T: {int32, int64}")
    .Attr("binary: list(bool)")
    .SetShapeFn([](InferenceContext* c) {
      int num_tables;
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
      for (int i = 0; i < num_tables; ++i) {
        DimensionHandle rows;
        TF_RETURN_IF_ERROR(NumRows(c, 2 * num_tables + i, &rows));
        ShapeHandle table;
        TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, 3 * num_tables + i), 2, &table));
        c->set_output(i, c->Matrix(rows, c->Dim(table, 1)));
      }
      return absl::OkStatus();
    })
    .Doc("SparseLinear for many pairs of a batch and a variable in one call.");

}  // namespace twml
