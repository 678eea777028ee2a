#include "cc/core/dynamic_lookup.h"

#include <algorithm>
#include <string>

#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

using RowsAndReset = py::typing::Tuple<Int64Array, Int64Array>;

Eviction ParseEviction(const std::string& name) {
  if (name == "none") return Eviction::kNone;
  if (name == "lru") return Eviction::kLru;
  if (name == "lfu") return Eviction::kLfu;
  if (name == "age") return Eviction::kAge;
  RaiseIfError(Invalid("eviction must be 'none', 'lru', 'lfu' or 'age', got '", name, "'"));
  return Eviction::kNone;
}

template <class T>
Span<T> InPlace(InPlaceArray<T>& array, const char* name, int rank) {
  RequireRank(array, rank, name);
  RequireUsableInPlace<T>(array, name, /*written=*/true);
  return {static_cast<T*>(array.mutable_data()), static_cast<int64_t>(array.size())};
}

RowsAndReset BoundDynamicLookup(const ArrayLike& ids, InPlaceArray<int64_t> keys,
                                InPlaceArray<int64_t> last_used, InPlaceArray<int64_t> counts,
                                InPlaceArray<int32_t> index, InPlaceArray<uint8_t> sketch,
                                InPlaceArray<int64_t> header, bool training, int64_t min_count,
                                const std::string& eviction, int64_t max_age, int64_t pinned,
                                int64_t seed, int num_threads) {
  const auto wanted = ToArray<int64_t>(ids, "ids");
  RequireRank(wanted, 1, "ids");
  const MutableDynamicRows state = {
      InPlace(keys, "keys", 1),   InPlace(last_used, "last_used", 1), InPlace(counts, "counts", 1),
      InPlace(index, "index", 1), InPlace(sketch, "sketch", 2),       InPlace(header, "header", 1)};
  const DynamicLookupOptions options{min_count, ParseEviction(eviction), max_age, pinned, seed};
  Int64Array rows(wanted.size());
  int64_t* const out = rows.mutable_data();
  std::vector<int64_t> reset;
  Status status;
  {
    py::gil_scoped_release release;
    const ParallelFor threads = Threads(num_threads);
    if (training) {
      status = AssignDynamicRows(SpanOf(wanted), state, options, threads, out, &reset);
    } else {
      const ConstDynamicRows view = {state.keys,  state.last_used, state.counts,
                                     state.index, state.sketch,    state.header};
      status = FindDynamicRows(SpanOf(wanted), view, options, threads, out);
    }
  }
  RaiseIfError(status);
  return py::make_tuple(rows, MoveToArray(std::move(reset)));
}

}  // namespace

void BindDynamicLookup(py::module_& m) {
  using py::literals::operator""_a;
  m.def("dynamic_lookup", &BoundDynamicLookup, "ids"_a, "keys"_a, "last_used"_a, "counts"_a,
        "index"_a, "sketch"_a, "header"_a, py::kw_only(), "training"_a = false,
        IntArg("min_count") = 1, "eviction"_a = "lru", IntArg("max_age") = 0, IntArg("pinned") = 1,
        IntArg("seed") = 0, IntArg("num_threads") = 0,
        R"(Returns the rows of ids of an unbounded space in a table of bounded size.

Row 0 is shared by all ids without a row of their own. In training ids are counted, and those that
were seen often get a row, if necessary that of another id. A count-min sketch (Cormode and
Muthukrishnan, 2005) counts ids without a row; its counters are halved after every width / 2
sightings (Einziger, Friedman and Manes, 2017, "TinyLFU"), but not more often than every min_count
lookups, so that an id that is in every lookup is always admitted.

The state is modified in place. A new one has zeros, except for `index`, which has -1.

Args:
  ids: int64 [K], any integers.
  keys: int64 [capacity], the id of each row.
  last_used: int64 [capacity], the number of the last lookup that used a row, from 1; 0: none.
  counts: int64 [capacity], how often the id of a row occurred.
  index: int32 [size], a hash table of rows; size is a power of two of at least 2 * capacity.
  sketch: uint8 [4, width], width a power of two, or 0 if min_count is 1.
  header: int64 [4]: number of lookups, rows in use, sightings since the sketch was halved, and the
    lookup in which it was.
  training: whether ids are counted and get rows.
  min_count: number of sightings after which an id gets a row, in [1, 255].
  eviction: 'none': ids that find no free row share row 0; 'lru': the least recently used row is
    given away; 'lfu': the row with the fewest uses, of several the least recently used one; 'age':
    as 'lru', but only rows that the last max_age lookups did not use.
  max_age: for 'age', not negative.
  pinned: rows that this and the preceding pinned - 1 lookups used are not given away.
  seed: of the hashes.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  (rows int64 [K], reset int64 [E]): the row of each id, and the rows that have a new id.

Raises:
  ValueError: an option is out of its range, or the state has other shapes. It is unchanged.)");
}

}  // namespace twml
