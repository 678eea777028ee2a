#include "cc/core/reuse_distance.h"

#include <memory>
#include <mutex>

#include "python/bind.h"

namespace twml {
namespace {

// Distances that several Python threads may add to. The GIL is released while they are counted.
class PyReuseDistances {
 public:
  explicit PyReuseDistances(int64_t max_ids) : distances_(Checked(max_ids)) {}

  void Add(const ArrayLike& ids_in) {
    const auto ids = ToArray<int64_t>(ids_in, "ids");
    RequireRank(ids, 1, "ids");
    Locked([&](ReuseDistances& d) {
      d.Add(SpanOf(ids));
      return 0;
    });
  }

  Int64Array Hits(const ArrayLike& sizes_in) {
    const auto sizes = ToArray<int64_t>(sizes_in, "sizes");
    RequireRank(sizes, 1, "sizes");
    Int64Array hits(sizes.size());
    int64_t* const out = hits.mutable_data();
    Locked([&](ReuseDistances& d) {
      d.Hits(SpanOf(sizes), out);
      return 0;
    });
    return hits;
  }

  int64_t Quantile(double share) {
    if (!(share >= 0 && share <= 1)) {
      RaiseIfError(Invalid("share must be in [0, 1], got ", share));
    }
    return Locked([&](ReuseDistances& d) { return d.Quantile(share); });
  }

  int64_t accesses() {
    return Locked([](ReuseDistances& d) { return d.accesses(); });
  }
  int64_t distinct_ids() {
    return Locked([](ReuseDistances& d) { return d.distinct_ids(); });
  }
  int64_t sampled_one_in() {
    return Locked([](ReuseDistances& d) { return int64_t{1} << d.level(); });
  }

 private:
  static int64_t Checked(int64_t max_ids) {
    if (max_ids < ReuseDistances::kMinIds || max_ids > ReuseDistances::kMaxIds) {
      RaiseIfError(Invalid("max_ids must be in [", ReuseDistances::kMinIds, ", ",
                           ReuseDistances::kMaxIds, "], got ", max_ids));
    }
    return max_ids;
  }

  template <class F>
  int64_t Locked(const F& f) {
    py::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(mu_);
    return f(distances_);
  }

  std::mutex mu_;
  ReuseDistances distances_;
};

}  // namespace

void BindReuseDistances(py::module_& m) {
  using py::literals::operator""_a;
  py::class_<PyReuseDistances>(m, "ReuseDistances",
                               R"(Reuse distances of a sequence of ids, and the hits of LRU caches.

The reuse distance of an access is the number of distinct other ids since the last access to the
same id. A cache of the C least recently used ids serves the accesses with a distance below C
(Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems
Journal, 1970), so one pass gives the hits for every C. Distances below max_ids are exact. Longer
ones are measured on a sample of one in 2, 4, 8, ... ids, chosen by a hash (Waldspurger, Park,
Garthwaite and Ahmad, "Efficient MRC construction with SHARDS", FAST 2015). The result depends on
the sequence only. Several threads may use an object.

Args:
  max_ids: up to how many ids all distances are exact, in [64, 2^30]. Each takes about 200 bytes.

Raises:
  ValueError: max_ids is out of range.)")
      .def(py::init<int64_t>(), IntArg("max_ids") = 1 << 18)
      .def("add", &PyReuseDistances::Add, "ids"_a, R"(Adds accesses.

Args:
  ids: int64 [K], in the order of the accesses; any ids.

Raises:
  ValueError: ids has another type or shape.)")
      .def("hits", &PyReuseDistances::Hits, "sizes"_a,
           R"(Returns how many accesses LRU caches would have served, each of them empty at first.

Args:
  sizes: int64 [S], numbers of ids that a cache holds.

Returns:
  int64 [S].

Raises:
  ValueError: sizes has another type or shape.)")
      .def("quantile", &PyReuseDistances::Quantile, "share"_a,
           R"(Returns a quantile of the distances.

Args:
  share: in [0, 1].

Returns:
  The smallest distance that this share of the accesses with a distance does not exceed; -1 if no id
  occurred twice.

Raises:
  ValueError: share is out of range.)")
      .def_property_readonly("accesses", &PyReuseDistances::accesses, "Number of accesses.")
      .def_property_readonly("distinct_ids", &PyReuseDistances::distinct_ids,
                             "Number of distinct ids; an estimate if there is a sample.")
      .def_property_readonly(
          "sampled_one_in", &PyReuseDistances::sampled_one_in,
          "1 if all results are exact; otherwise the sample has one in so many ids.");
}

}  // namespace twml
