#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>PackEntries")
    .Input("ids: T")
    .Input("values: float")
    .Input("row_splits: int64")
    .Output("packed: parts * uint8")
    .Attr("T: {int32, int64}")
    .Attr("parts: int >= 1")
    .Attr("input_dim: int >= 0")
    .Attr("binary: bool = false")
    .Attr("deduplicate: bool = true")
    .SetShapeFn([](InferenceContext* c) {
      for (int p = 0; p < c->num_outputs(); ++p) c->set_output(p, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc("Serializes the entries with id mod parts = p, with ids divided by parts, to packed[p].");

REGISTER_OP("Twml>UnpackEntries")
    .Input("packed: uint8")
    .Output("ids: T")
    .Output("values: float")
    .Output("row_splits: int64")
    .Attr("T: {int32, int64}")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc("Reads one output of PackEntries. values is empty for a binary batch.");

REGISTER_OP("Twml>GroupPackedEntries")
    .Input("packed: uint8")
    .Input("input_dim: int64")
    .Output("grouped: variant")
    .Attr("T: {int32, int64}")
    .Attr("binary: bool = false")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "GroupBatch for the entries of one output of PackEntries, which need not be sorted where "
        "it "
        "has their distinct ids. T is the type of ids that UnpackEntries returns.");

REGISTER_OP("Twml>JoinBatches")
    .Input("ids: N * T")
    .Input("values: N * float")
    .Input("row_splits: N * int64")
    .Input("gradients: M * float")
    .Output("joined_ids: T")
    .Output("joined_values: float")
    .Output("joined_row_splits: int64")
    .Output("joined_gradients: float")
    .Attr("T: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("M: int >= 0")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Vector(c->UnknownDim()));
      c->set_output(3, c->Matrix(c->UnknownDim(), c->UnknownDim()));
      std::vector<ShapeHandle> gradients;
      TF_RETURN_IF_ERROR(c->input("gradients", &gradients));
      if (gradients.empty()) return absl::OkStatus();
      ShapeHandle first;
      TF_RETURN_IF_ERROR(c->WithRank(gradients[0], 2, &first));
      c->set_output(3, c->Matrix(c->UnknownDim(), c->Dim(first, 1)));
      return absl::OkStatus();
    })
    .Doc(
        "The batch that has the examples of all N batches, in their order. M is 0 or N: gradients "
        "[B, D] are concatenated as well, each times its share of all rows, as the gradients of "
        "mean losses are for the mean loss of all examples.");

}  // namespace twml
