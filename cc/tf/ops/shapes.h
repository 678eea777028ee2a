// Shape functions shared by the ops.
#ifndef TWML_TF_OPS_SHAPES_H_
#define TWML_TF_OPS_SHAPES_H_

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace twml {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The number of rows B, given row_splits [B + 1] at input `i`.
inline absl::Status NumRows(InferenceContext* c, int i, DimensionHandle* num_rows) {
  ShapeHandle splits;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &splits));
  return c->Subtract(c->Dim(splits, 0), 1, num_rows);
}

// The shape of input `i`, or of the variable if the input is a resource handle.
inline ShapeHandle TableShape(InferenceContext* c, int i) {
  const auto* handle = c->input_handle_shapes_and_types(i);
  return handle != nullptr && !handle->empty()                        ? (*handle)[0].shape
         : c->input_tensor(i) == nullptr && c->Rank(c->input(i)) == 0 ? c->UnknownShape()
                                                                      : c->input(i);
}

// The shapes of two outputs with one item per entry. The first two inputs are ids and values.
inline absl::Status TwoPerEntryShape(InferenceContext* c) {
  ShapeHandle entries;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &entries));
  TF_RETURN_IF_ERROR(c->Merge(entries, c->input(1), &entries));
  c->set_output(0, entries);
  c->set_output(1, entries);
  return absl::OkStatus();
}

}  // namespace twml

#endif  // TWML_TF_OPS_SHAPES_H_
