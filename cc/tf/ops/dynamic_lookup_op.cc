#include "cc/tf/ops/shapes.h"

namespace twml {

REGISTER_OP("Twml>DynamicLookup")
    .Input("ids: int64")
    .Input("keys: resource")
    .Input("last_used: resource")
    .Input("counts: resource")
    .Input("index: resource")
    .Input("sketch: resource")
    .Input("header: resource")
    .Input("training: bool")
    .Input("pinned: int64")
    .Output("rows: int64")
    .Output("reset: int64")
    .Attr("min_count: int")
    .Attr("eviction: {'none', 'lru', 'lfu', 'age'}")
    .Attr("max_age: int")
    .Attr("seed: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc("Rows of a bounded table for ids; see cc/core/dynamic_lookup.h.");

REGISTER_OP("Twml>SharedDynamicLookup")
    .Input("ids: int64")
    .Input("keys: resource")
    .Input("last_used: resource")
    .Input("counts: resource")
    .Input("index: resource")
    .Input("sketch: resource")
    .Input("header: resource")
    .Input("new_rows: resource")
    .Input("base: int64")
    .Input("begun: int64")
    .Input("pinned: int64")
    .Output("rows: int64")
    .Output("recent: int64")
    .Attr("min_count: int")
    .Attr("eviction: {'none', 'lru', 'lfu', 'age'}")
    .Attr("max_age: int")
    .Attr("seed: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      c->set_output(1, c->Matrix(InferenceContext::kUnknownDim, 2));
      return absl::OkStatus();
    })
    .Doc("Twml>DynamicLookup in training, of processes that do not wait for each other.");

}  // namespace twml
