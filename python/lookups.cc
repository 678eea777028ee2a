#include "cc/core/find_keys.h"
#include "cc/core/gather_dot.h"
#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

Int64Array BoundFindKeys(const ArrayLike& known, const ArrayLike& keys, int num_threads) {
  const auto sorted = ToArray<int64_t>(known, "known");
  RequireRank(sorted, 1, "known");
  const auto wanted = ToArray<int64_t>(keys, "keys");
  Int64Array out(std::vector<py::ssize_t>(wanted.shape(), wanted.shape() + wanted.ndim()));
  int64_t* const positions = out.mutable_data();
  py::gil_scoped_release release;
  FindKeys(SpanOf(sorted), SpanOf(wanted), Threads(num_threads), positions);
  return out;
}

FloatArray BoundGatherDot(const ArrayLike& table, const ArrayLike& positions,
                          const ArrayLike& vectors, int num_threads) {
  const auto rows = ToArray<float>(table, "table");
  RequireRank(rows, 2, "table");
  const auto at = ToArray<int64_t>(positions, "positions");
  RequireRank(at, 2, "positions");
  const auto factors = ToArray<float>(vectors, "vectors");
  RequireRank(factors, 2, "vectors");
  FloatArray out({at.shape(0), at.shape(1)});
  float* const products = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    status = GatherDot(
        {rows.data(), rows.shape(0), rows.shape(1)}, {at.data(), at.shape(0), at.shape(1)},
        {factors.data(), factors.shape(0), factors.shape(1)}, Threads(num_threads), products);
  }
  RaiseIfError(status);
  return out;
}

}  // namespace

void BindLookups(py::module_& m) {
  using py::literals::operator""_a;
  m.def("find_keys", &BoundFindKeys, "known"_a, "keys"_a, py::kw_only(), IntArg("num_threads") = 0,
        R"(Returns the positions of keys in ascending keys.

The search begins where evenly distributed keys would have a key (interpolation search, Perl, Itai
and Avni, 1978), so it is fast for hashes, and logarithmic for all others.

Args:
  known: int64 [U], strictly ascending; otherwise keys may not be found.
  keys: int64 of any shape.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  int64 of the shape of `keys`; -1 where `known` does not have the key.

Raises:
  ValueError: `known` is no vector.)");
  m.def("gather_dot", &BoundGatherDot, "table"_a, "positions"_a, "vectors"_a, py::kw_only(),
        IntArg("num_threads") = 0,
        R"(Returns the dot products of rows of a table with a vector for each example.

Args:
  table: float32 [U, K].
  positions: int64 [B, C], in [-1, U).
  vectors: float32 [B, K], or [1, K] for one vector for all examples.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [B, C], the sums over k of table[positions[b, c], k] * vectors[b, k] in the order of k; 0
  where the position is -1.

Raises:
  ValueError: a position is out of range, or shapes do not fit.)");
}

}  // namespace twml
