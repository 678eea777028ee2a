#include "cc/tf/ops/shapes.h"

namespace twml {
namespace {

absl::Status NoOutput(InferenceContext*) { return absl::OkStatus(); }

}  // namespace

// A table with num_rows rows is larger than memory: `table` [cache rows, D] has some of them, and a
// file has the others (cc/core/tiered_rows.h). The resource keeps the file, which is removed with
// it.
REGISTER_OP("Twml>OpenTieredRows")
    .Input("table: resource")
    .Input("initial: dtype")
    .Output("rows: resource")
    .Attr("dtype: {float, bfloat16}")
    .Attr("path: string")
    .Attr("num_rows: int")
    .Attr("prefetch_rows: int")
    .Attr("policy: {'lru', 'lfu'}")
    .Attr("direct: bool")
    .Attr("io_uring: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc("Creates the file of a table. `initial` [D] is the content of rows that are not written.");

REGISTER_OP("Twml>OpenServerRows")
    .Input("table: resource")
    .Input("initial: dtype")
    .Output("file: string")
    .Attr("dtype: {float, bfloat16}")
    .Attr("path: string")
    .Attr("num_rows: int")
    .Attr("prefetch_rows: int")
    .Attr("policy: {'lru', 'lfu'}")
    .Attr("direct: bool")
    .Attr("io_uring: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(
        "OpenTieredRows for a table of a parameter server, which keeps the rows until "
        "CloseServerRows, and closes the ones that the table had before. Its folder is created, "
        "and the file is one that no other table uses: `path`.rows, `path`-1.rows, and so on.");

REGISTER_OP("Twml>CloseServerRows")
    .Input("table: resource")
    .Output("closed: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc("Removes the file of a table of a parameter server. Returns whether there was one.");

REGISTER_OP("Twml>AttachSlots")
    .Input("rows: resource")
    .Input("slots: num_slots * resource")
    .Input("initial_values: num_slots * float")
    .Attr("num_slots: int >= 0")
    .SetIsStateful()
    .SetShapeFn(NoOutput)
    .Doc("Keeps the rows of slots beside the rows of the table. All of them get an initial value.");

REGISTER_OP("Twml>PrefetchRows")
    .Input("rows: resource")
    .Input("ids: T")
    .Output("count: int64")
    .Attr("T: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc("Reads the rows of a later lookup ahead. Returns the number of ids.");

REGISTER_OP("Twml>ReadTieredRows")
    .Input("rows: resource")
    .Input("begin: int64")
    .Input("count: int64")
    .Output("values: dtype")
    .Attr("part: int >= 0")
    .Attr("dtype: {float, bfloat16}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc("Rows [begin, begin + count) of the table (part 0) or of one of its slots.");

REGISTER_OP("Twml>WriteTieredRows")
    .Input("rows: resource")
    .Input("begin: int64")
    .Input("values: dtype")
    .Attr("part: int >= 0")
    .Attr("dtype: {float, bfloat16}")
    .SetIsStateful()
    .SetShapeFn(NoOutput)
    .Doc("Sets rows from `begin` on of the table (part 0) or of one of its slots.");

REGISTER_OP("Twml>TieredStatistics")
    .Input("rows: resource")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc("Counts of lookups, rows, misses, and others; see TieredRows::Statistics.");

// ids [K] in [0, input_dim), values [K] (or [0] if binary), row_splits [B + 1] -> [B, D]
REGISTER_OP("Twml>TieredSparseLinear")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("table: resource")
    .Output("output: float")
    .Attr("T: {int32, int64}")
    .Attr("binary: bool = false")
    .Attr("input_dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      DimensionHandle rows;
      TF_RETURN_IF_ERROR(NumRows(c, 2, &rows));
      ShapeHandle table;
      TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, 3), 2, &table));
      c->set_output(0, c->Matrix(rows, c->Dim(table, 1)));
      return absl::OkStatus();
    })
    .Doc("ResourceSparseLinear for a table of OpenTieredRows.");

REGISTER_OP("Twml>TieredSparseLinearValuesGrad")
    .Input("ids: T")
    .Input("row_splits: int64")
    .Input("table: resource")
    .Input("grad: float")
    .Output("values_grad: float")
    .Attr("T: {int32, int64}")
    .Attr("input_dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    })
    .Doc("The gradient of TieredSparseLinear by its values.");

}  // namespace twml
