#include "cc/core/tree_sums.h"

#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

FloatArray BoundTreeSums(const ArrayLike& x, const ArrayLike& ensembles, const ArrayLike& features,
                         const ArrayLike& thresholds, const ArrayLike& missing_left,
                         const ArrayLike& children, const ArrayLike& values, const ArrayLike& roots,
                         int64_t max_depth, int num_threads) {
  const auto rows = ToArray<float>(x, "x");
  RequireRank(rows, 2, "x");
  const auto trees = ToArray<int32_t>(roots, "roots");
  RequireRank(trees, 2, "roots");
  const auto of_rows = ToArray<int64_t>(ensembles, "ensembles");
  const auto columns = ToArray<int32_t>(features, "features");
  const auto limits = ToArray<float>(thresholds, "thresholds");
  const auto missing = ToArray<uint8_t>(missing_left, "missing_left");
  const auto below = ToArray<int32_t>(children, "children");
  const auto leaves = ToArray<float>(values, "values");
  RequireRank(of_rows, 1, "ensembles");
  RequireRank(columns, 1, "features");
  RequireRank(limits, 1, "thresholds");
  RequireRank(missing, 1, "missing_left");
  RequireRank(below, 2, "children");
  RequireRank(leaves, 1, "values");
  FloatArray out(rows.shape(0));
  float* const sums = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    const TreeNodes nodes = {SpanOf(columns), SpanOf(limits), SpanOf(missing), SpanOf(below),
                             SpanOf(leaves)};
    status = TreeSums({rows.data(), rows.shape(0), rows.shape(1)}, SpanOf(of_rows), nodes,
                      {trees.data(), trees.shape(0), trees.shape(1)}, max_depth,
                      Threads(num_threads), sums);
  }
  RaiseIfError(status);
  return out;
}

}  // namespace

void BindTreeSums(py::module_& m) {
  using py::literals::operator""_a;
  m.def("tree_sums", &BoundTreeSums, "x"_a, "ensembles"_a, "features"_a, "thresholds"_a,
        "missing_left"_a, "children"_a, "values"_a, "roots"_a, py::kw_only(), IntArg("max_depth"),
        IntArg("num_threads") = 0,
        R"(Returns the sums of the leaves of decision trees.

From node i, a row goes to children[i, 0] if its number in column features[i] is not larger than
thresholds[i], or, if the number is NaN, if missing_left[i]; otherwise it goes to children[i, 1].
Both children of a leaf are the leaf itself.

Args:
  x: float32 [B, C].
  ensembles: int64 [B], the ensemble of each row, in [0, K); or no items: the sum is the mean of the
    sums of all ensembles.
  features: int32 [M], in [0, C).
  thresholds: float32 [M].
  missing_left: uint8 [M], 0 or 1.
  children: int32 [M, 2], in [0, M).
  values: float32 [M].
  roots: int32 [K, T], in [0, M), the first node of each tree of each ensemble.
  max_depth: largest number of steps from a root, in [0, 1024].
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [B], summed in the order of the trees. It does not depend on the number of threads.

Raises:
  ValueError: an argument is out of its range or of another shape.)");
}

}  // namespace twml
