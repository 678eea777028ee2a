#include "cc/tf/ops/shapes.h"

namespace twml {
namespace {

// ids [K], values [K] (or [0] if binary), row_splits [B + 1], weights [N, D] -> [B, D]
absl::Status ForwardShape(InferenceContext* c) {
  DimensionHandle rows;
  TF_RETURN_IF_ERROR(NumRows(c, 2, &rows));
  ShapeHandle table;
  TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, 3), 2, &table));
  c->set_output(0, c->Matrix(rows, c->Dim(table, 1)));
  return absl::OkStatus();
}

absl::Status LikeIds(InferenceContext* c) {
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

// -> unique ids [U], rows [U, …], where `like` is an input [*, …]
absl::Status RowsShape(InferenceContext* c, int like) {
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(like), 1, &rows));
  const DimensionHandle unique = c->UnknownDim();
  c->set_output(0, c->Vector(unique));
  TF_RETURN_IF_ERROR(c->ReplaceDim(rows, 0, unique, &rows));
  c->set_output(1, rows);
  return absl::OkStatus();
}

// Input 1: num_rows -> output `out`: row_splits [num_rows + 1]
absl::Status RowSplitsShape(InferenceContext* c, int out) {
  DimensionHandle rows;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &rows));
  TF_RETURN_IF_ERROR(c->Add(rows, 1, &rows));
  c->set_output(out, c->Vector(rows));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Twml>SparseLinear")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Output("output: float")
    .Attr("T: {int32, int64}")
    .Attr("binary: bool = false")
    .SetShapeFn(ForwardShape)
    .Doc(
        "output[b] = sum over k in [row_splits[b], row_splits[b + 1]) of values[k] * "
        "weights[ids[k]].");

REGISTER_OP("Twml>ResourceSparseLinear")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("weights: resource")
    .Output("output: float")
    .Attr("T: {int32, int64}")
    .Attr("binary: bool = false")
    .SetShapeFn(ForwardShape)
    .Doc("SparseLinear with a variable, which is read in place.");

REGISTER_OP("Twml>SparseLinearValuesGrad")
    .Input("ids: T")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Input("grad: float")
    .Output("values_grad: float")
    .Attr("T: {int32, int64}")
    .SetShapeFn(LikeIds)
    .Doc("values_grad[k] = weights[ids[k]] . grad[row of entry k].");

REGISTER_OP("Twml>ResourceSparseLinearValuesGrad")
    .Input("ids: T")
    .Input("row_splits: int64")
    .Input("weights: resource")
    .Input("grad: float")
    .Output("values_grad: float")
    .Attr("T: {int32, int64}")
    .SetShapeFn(LikeIds)
    .Doc("SparseLinearValuesGrad with a variable, which is read in place.");

REGISTER_OP("Twml>SparseLinearWeightsGrad")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("grad: float")
    .Input("input_dim: int64")
    .Input("groups: num_groups * variant")
    .Output("unique_ids: T")
    .Output("rows: float")
    .Attr("T: {int32, int64}")
    .Attr("num_groups: int >= 0 = 0")
    .Attr("binary: bool = false")
    .SetShapeFn([](InferenceContext* c) { return RowsShape(c, 3); })
    .Doc(
        "The gradient of SparseLinear with respect to its weights: unique ids in ascending order "
        "and their summed rows. `groups` is the output of GroupBatch for the same batch, or none.");

REGISTER_OP("Twml>SumDuplicates")
    .Input("ids: T")
    .Input("rows: float")
    .Input("groups: num_groups * variant")
    .Output("unique_ids: T")
    .Output("summed: float")
    .Attr("T: {int32, int64}")
    .Attr("num_groups: int >= 0 = 0")
    .SetShapeFn([](InferenceContext* c) { return RowsShape(c, 1); })
    .Doc(
        "Sums the rows of equal ids in the given order. The unique ids are in ascending order. "
        "`groups` is the output of GroupIds for the same ids, or none.");

REGISTER_OP("Twml>RowSplitsFromIndices")
    .Input("row_indices: int64")
    .Input("num_rows: int64")
    .Output("row_splits: int64")
    .SetShapeFn([](InferenceContext* c) { return RowSplitsShape(c, 0); })
    .Doc(
        "The CSR offsets [num_rows + 1] of row-major COO row indices, which must be "
        "non-decreasing.");

REGISTER_OP("Twml>CsrFromIndices")
    .Input("indices: int64")
    .Input("num_rows: int64")
    .Output("ids: int64")
    .Output("row_splits: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle indices;
      DimensionHandle two;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &indices));
      TF_RETURN_IF_ERROR(c->WithValue(c->Dim(indices, 1), 2, &two));
      c->set_output(0, c->Vector(c->Dim(indices, 0)));
      return RowSplitsShape(c, 1);
    })
    .Doc("The ids and CSR offsets of a SparseTensor's row-major indices [K, 2].");

}  // namespace twml
