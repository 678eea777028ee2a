#include "cc/core/quantile_sketch.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/mdl_boundaries.h"
#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

using S = QuantileSketchState;
using StateDict = py::typing::Dict<py::str, py::array>;
using BoundariesAndSplits = py::typing::Tuple<FloatArray, Int64Array>;

std::string TypeOf(const py::handle& object) {
  return py::str(py::type::of(object).attr("__name__")).cast<std::string>();
}

void RequireColumns(const py::array& a, int64_t columns, const char* name) {
  RequireRank(a, 2, name);
  if (a.shape(1) == columns) return;
  RaiseIfError(Invalid(name, " must have ", columns, " columns, got ", a.shape(1)));
}

// A sketch that several Python threads may use. The GIL is released while it works.
class PySketch {
 public:
  PySketch(double epsilon, int64_t exact_values, bool weighted) {
    RaiseIfError(QuantileSketch::Make({epsilon, exact_values, weighted}, &sketch_));
  }
  explicit PySketch(const StateDict& state) {
    const auto config = ToArray<double>(state["config"], "config");
    const auto feature_ids = ToArray<int64_t>(state["feature_ids"], "feature_ids");
    const auto totals = ToArray<double>(state["totals"], "totals");
    const auto counters = ToArray<int64_t>(state["counters"], "counters");
    const auto runs = ToArray<int32_t>(state["runs"], "runs");
    const auto items = ToArray<float>(state["items"], "items");
    RequireRank(config, 1, "config");
    RequireRank(feature_ids, 1, "feature_ids");
    RequireRank(items, 1, "items");
    RequireColumns(totals, S::kTotals, "totals");
    RequireColumns(counters, S::kCounters, "counters");
    RequireColumns(runs, S::kRun, "runs");
    Status status;
    {
      py::gil_scoped_release release;
      status = QuantileSketch::FromState({SpanOf(config), SpanOf(feature_ids), SpanOf(totals),
                                          SpanOf(counters), SpanOf(runs), SpanOf(items)},
                                         Threads(0), &sketch_);
    }
    RaiseIfError(status);
  }

  template <class F>
  auto Locked(const F& f) {
    py::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(mu_);
    return f(*sketch_);
  }

  void Update(const ArrayLike& ids_in, const ArrayLike& values_in,
              const std::optional<ArrayLike>& weights_in, int num_threads) {
    const auto ids = ToArray<int64_t>(ids_in, "ids");
    const auto values = ToArray<float>(values_in, "values");
    const auto weights = ToOptionalArray<float>(weights_in, "weights");
    RequireShapeOf(ids, "ids", values, "values");
    if (weights) RequireShapeOf(ids, "ids", *weights, "weights");
    const auto w = weights ? SpanOf(*weights) : Span<const float>();
    RaiseIfError(Locked([&](QuantileSketch& s) {
      return s.Update(SpanOf(ids), SpanOf(values), w, Threads(num_threads));
    }));
  }

  void Merge(PySketch& other, int num_threads) {
    if (&other == this)
      throw py::value_error("other must be another sketch, got the sketch itself");
    Status status;
    {
      py::gil_scoped_release release;
      std::scoped_lock lock(mu_, other.mu_);
      status = sketch_->Merge(*other.sketch_, Threads(num_threads));
    }
    RaiseIfError(status);
  }

  py::array_t<float> Quantiles(const ArrayLike& ids_in, const ArrayLike& probabilities_in,
                               int num_threads) {
    const auto ids = ToArray<int64_t>(ids_in, "feature_ids");
    const auto probabilities = ToArray<double>(probabilities_in, "probabilities");
    RequireRank(ids, 1, "feature_ids");
    RequireRank(probabilities, 1, "probabilities");
    py::array_t<float> out({ids.size(), probabilities.size()});
    float* data = out.mutable_data();
    RaiseIfError(Locked([&](QuantileSketch& s) {
      return s.Quantiles(SpanOf(ids), SpanOf(probabilities), Threads(num_threads), data);
    }));
    return out;
  }

  py::array_t<double> Ranks(const ArrayLike& ids_in, const ArrayLike& values_in, int num_threads) {
    const auto ids = ToArray<int64_t>(ids_in, "ids");
    const auto values = ToArray<float>(values_in, "values");
    RequireShapeOf(ids, "ids", values, "values");
    py::array_t<double> out(ids.size());
    double* data = out.mutable_data();
    RaiseIfError(Locked([&](QuantileSketch& s) {
      return s.Ranks(SpanOf(ids), SpanOf(values), Threads(num_threads), data);
    }));
    return out;
  }

  py::typing::Dict<py::str, DoubleArray> Describe(const ArrayLike& ids_in) {
    const auto ids = ToArray<int64_t>(ids_in, "feature_ids");
    std::vector<double> rows(ids.size() * QuantileSketch::kNumStatistics);
    Locked([&](QuantileSketch& s) { s.Describe(SpanOf(ids), rows.data()); });
    py::typing::Dict<py::str, DoubleArray> out;
    int64_t column = 0;
    for (const char* name : {"weight", "missing", "rank_error", "held"}) {
      std::vector<double> values(ids.size());
      for (py::ssize_t i = 0; i < ids.size(); ++i) {
        values[i] = rows[i * QuantileSketch::kNumStatistics + column];
      }
      out[name] = MoveToArray(std::move(values));
      ++column;
    }
    return out;
  }

  BoundariesAndSplits Boundaries(const ArrayLike& ids_in, const ArrayLike& bins_in,
                                 const std::string& side, int num_threads) {
    const auto ids = ToArray<int64_t>(ids_in, "feature_ids");
    const auto bins = ToArray<int64_t>(bins_in, "num_bins");
    RequireShapeOf(ids, "feature_ids", bins, "num_bins");
    if (side != "left" && side != "right") {
      throw py::value_error("side must be one of 'left', 'right', got '" + side + "'");
    }
    QuantileBoundaries out;
    RaiseIfError(Locked([&](QuantileSketch& s) {
      return s.Boundaries(SpanOf(ids), SpanOf(bins), side == "right", Threads(num_threads), &out);
    }));
    return py::make_tuple(MoveToArray(std::move(out.boundaries)),
                          MoveToArray(std::move(out.splits)));
  }

  py::typing::Tuple<FloatArray, DoubleArray> Values(int64_t id) {
    std::vector<float> values;
    std::vector<double> weights;
    Locked([&](QuantileSketch& s) { s.Values(id, &values, &weights); });
    return py::make_tuple(MoveToArray(std::move(values)), MoveToArray(std::move(weights)));
  }

  py::array_t<int64_t> FeatureIds() {
    return MoveToArray(Locked([](QuantileSketch& s) { return s.FeatureIds(); }));
  }

  // Makes a sketch of states that have different features, and reads them one at a time.
  static std::unique_ptr<PySketch> FromStates(const py::typing::Iterable<StateDict>& states) {
    std::unique_ptr<PySketch> whole;
    for (const py::handle& state : states) {
      if (!py::isinstance<py::dict>(state)) {
        throw py::type_error("states must be dicts as returned by state(), got " + TypeOf(state));
      }
      auto part = std::make_unique<PySketch>(state.cast<StateDict>());
      if (whole == nullptr) {
        whole = std::move(part);
      } else {
        RaiseIfError(whole->sketch_->Splice(part->sketch_.get()));
      }
    }
    if (whole == nullptr) throw py::value_error("states must have at least one item, got none");
    return whole;
  }

  StateDict State(int64_t first, std::optional<int64_t> end) {
    const int64_t last = end.value_or(INT64_MAX);
    std::lock_guard<std::mutex> lock(mu_);  // no thread waits for the GIL while it holds this lock
    const auto sizes = sketch_->Sizes(first, last);
    py::array_t<double> config(S::kConfig), totals({sizes.features, S::kTotals});
    py::array_t<int64_t> feature_ids(sizes.features), counters({sizes.features, S::kCounters});
    py::array_t<int32_t> runs({sizes.runs, S::kRun});
    py::array_t<float> items(sizes.items);
    const auto span = [](auto& a) {
      return Span(a.mutable_data(), static_cast<int64_t>(a.size()));
    };
    sketch_->Write(
        {span(config), span(feature_ids), span(totals), span(counters), span(runs), span(items)},
        first, last);
    StateDict out;
    out["config"] = config;
    out["feature_ids"] = feature_ids;
    out["totals"] = totals;
    out["counters"] = counters;
    out["runs"] = runs;
    out["items"] = items;
    return out;
  }

  int64_t Bytes() {
    return Locked([](QuantileSketch& s) { return s.bytes(); });
  }
  const QuantileSketchOptions& options() const { return sketch_->options(); }

  static BoundariesAndSplits MdlBoundariesOf(const py::typing::Iterable<PySketch>& sketches_in,
                                             const ArrayLike& ids_in, const std::string& side,
                                             int num_threads) {
    const py::list sketch_objects(sketches_in);  // keeps the sketches alive
    std::vector<PySketch*> classes;
    for (const py::handle& sketch : sketch_objects) {
      if (!py::isinstance<PySketch>(sketch)) {
        throw py::type_error("sketches must be QuantileSketch objects, got " + TypeOf(sketch));
      }
      classes.push_back(sketch.cast<PySketch*>());
    }
    const auto ids = ToArray<int64_t>(ids_in, "feature_ids");
    if (classes.empty()) throw py::value_error("sketches must have at least one item, got none");
    if (side != "left" && side != "right") {
      throw py::value_error("side must be one of 'left', 'right', got '" + side + "'");
    }
    QuantileBoundaries out;
    {
      py::gil_scoped_release release;
      std::vector<const QuantileSketch*> sketches;
      std::vector<std::unique_lock<std::mutex>> locks;
      std::vector<PySketch*> in_order = classes;  // the order of locking, without duplicates
      std::sort(in_order.begin(), in_order.end());
      in_order.erase(std::unique(in_order.begin(), in_order.end()), in_order.end());
      for (PySketch* sketch : in_order) locks.emplace_back(sketch->mu_);
      for (const PySketch* sketch : classes) sketches.push_back(sketch->sketch_.get());
      MdlBoundaries(sketches, SpanOf(ids), side == "right", Threads(num_threads), &out);
    }
    return py::make_tuple(MoveToArray(std::move(out.boundaries)),
                          MoveToArray(std::move(out.splits)));
  }

 private:
  std::mutex mu_;
  std::unique_ptr<QuantileSketch> sketch_;
};

}  // namespace

void BindQuantileSketch(py::module_& m) {
  using py::literals::operator""_a;
  py::class_<PySketch>(m, "QuantileSketch",
                       R"(Quantiles of many streams at once: one mergeable sketch per feature.

The algorithm is KLL (Karnin, Lang, Liberty: "Optimal Quantile Approximation in Streams", FOCS
2016). A rank is wrong by more than epsilon times the total weight of the feature with a probability of at
most 1 %. The result does not depend on the number of threads or on how a stream is divided into
batches. Several threads may use a sketch. Sketches can be pickled.

Args:
  epsilon: the rank error as a fraction of the total weight of a feature, in [1e-5, 0.5].
  exact_values: a feature with at most so many distinct values is exact, in [0, 2^20].
  weighted: whether update accepts weights.

Raises:
  ValueError: an argument is out of range.)")
      .def(py::init<double, int64_t, bool>(), "epsilon"_a = 1e-3, IntArg("exact_values") = 256,
           "weighted"_a = false)
      .def("update", &PySketch::Update, "ids"_a, "values"_a, "weights"_a = py::none(),
           py::kw_only(), IntArg("num_threads") = 0, R"(Adds values to the features.

Args:
  ids: int64, the feature of each value; any ids.
  values: float32 with the shape of ids. NaNs count as missing values.
  weights: float32 with the shape of ids, in [0, 2^31], or None if all weights are 1.
  num_threads: maximum number of threads; 0 means one per core.

Raises:
  ValueError: weights are given to a sketch with weighted=False or are out of range, or the shape
    or the type of an argument is wrong. The sketch is then unchanged.)")
      .def("merge", &PySketch::Merge, "other"_a, py::kw_only(), IntArg("num_threads") = 0,
           R"(Adds everything that another sketch has seen.

Args:
  other: a sketch with the same epsilon, exact_values and weighted.
  num_threads: maximum number of threads; 0 means one per core.

Raises:
  ValueError: other has different options or is this sketch.)")
      .def("quantiles", &PySketch::Quantiles, "feature_ids"_a, "probabilities"_a, py::kw_only(),
           IntArg("num_threads") = 0, R"(Computes quantiles.

Args:
  feature_ids: int64 [F], the features.
  probabilities: float64 [P], in [0, 1]. 0 gives the exact minimum and 1 the exact maximum.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [F, P], the smallest value whose rank is at least the probability times the total weight,
  or NaN for a feature without values.

Raises:
  ValueError: a probability is out of range, or the shape or the type of an argument is wrong.)")
      .def("ranks", &PySketch::Ranks, "ids"_a, "values"_a, py::kw_only(), IntArg("num_threads") = 0,
           R"(Computes the ranks of values.

Args:
  ids: int64 [K], the feature of each value.
  values: float32 [K].
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float64 [K], the weight of all values of feature ids[k] that are <= values[k].

Raises:
  ValueError: the shape or the type of an argument is wrong.)")
      .def("describe", &PySketch::Describe, "feature_ids"_a, R"(Describes features.

Args:
  feature_ids: int64 [F], the features.

Returns:
  Four float64 [F] arrays: 'weight', the total weight of the values; 'missing', the weight of the
  NaNs; 'rank_error', a bound of the rank error in units of weight, which holds with a probability
  of at least 99 %; and 'held', the number of values and weights in memory. All are 0 for a feature
  that was not seen.

Raises:
  ValueError: feature_ids is not an array of integers.)")
      .def("boundaries", &PySketch::Boundaries, "feature_ids"_a, "num_bins"_a, "side"_a = "left",
           py::kw_only(), IntArg("num_threads") = 0,
           R"(Computes boundaries that divide the values of each feature into bins of equal weight.

If a feature has no more distinct values than bins, each value gets a bin of its own.

Args:
  feature_ids: int64 [F], the features.
  num_bins: int64 [F], the maximum number of bins of each feature, at least 1.
  side: 'left' if a boundary belongs to the bin before it (intervals (a, b]), 'right' if it belongs
    to the bin after it (intervals [a, b)).
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  The boundaries of all features, float32, and the splits, int64 [F + 1]: feature f has the
  boundaries splits[f] to splits[f + 1]. Buckets takes them in this form.

Raises:
  ValueError: a number of bins is less than 1, side is unknown, or the shape or the type of an
    argument is wrong.)")
      .def("values", &PySketch::Values, IntArg("feature_id"),
           R"(Returns the distinct values in memory for one feature.

Args:
  feature_id: the feature.

Returns:
  The values in ascending order, float32 [V], and their weights, float64 [V].)")
      .def("state", &PySketch::State, IntArg("first") = 0, IntArg("last") = py::none(),
           R"(Returns the state as arrays. Equal sketches have equal states.

Args:
  first: index of the first feature, in ascending order of the feature ids; not negative.
  last: index after the last feature, or None for all.

Returns:
  The arrays 'config' float64 [4], 'feature_ids' int64 [F], 'totals' float64 [F, 7], 'counters'
  int64 [F, 4], 'runs' int32 [R, 2] and 'items' float32 [I] of the features
  feature_ids[first:last]. cc/core/quantile_sketch.h describes them.)")
      .def_static("from_states", &PySketch::FromStates, "states"_a,
                  R"(Makes a sketch of several states, which are read one at a time.

Args:
  states: states with the same options and with different features, as returned by state.

Returns:
  The sketch with the features of all states.

Raises:
  ValueError: a state is malformed, states have different options or share a feature, or there are
    no states.
  TypeError: a state is not a dict.
  KeyError: a state lacks an array.)")
      .def_static(
          "from_state", [](const StateDict& state) { return std::make_unique<PySketch>(state); },
          "state"_a, R"(Makes a sketch of a state.

Args:
  state: the arrays returned by state.

Returns:
  The sketch.

Raises:
  ValueError: the state is malformed.
  KeyError: the state lacks an array.)")
      .def_property_readonly("feature_ids", &PySketch::FeatureIds,
                             "The ids of the features seen so far, int64 [F], in ascending order.")
      .def_property_readonly("nbytes", &PySketch::Bytes, "The memory in use, in bytes.")
      .def_property_readonly(
          "epsilon", [](const PySketch& s) { return s.options().epsilon; },
          "The rank error as a fraction of the total weight of a feature.")
      .def_property_readonly(
          "exact_values", [](const PySketch& s) { return s.options().exact_values; },
          "Features with at most so many distinct values are exact.")
      .def_property_readonly(
          "weighted", [](const PySketch& s) { return s.options().weighted; },
          "Whether update accepts weights.")
      .def(py::pickle([](PySketch& s) { return s.State(0, {}); },
                      [](const StateDict& state) { return std::make_unique<PySketch>(state); }));
  m.def("mdl_boundaries", &PySketch::MdlBoundariesOf, "sketches"_a, "feature_ids"_a,
        "side"_a = "left", py::kw_only(), IntArg("num_threads") = 0,
        R"(Computes boundaries that separate classes, by the minimum description length principle.

The algorithm is that of Fayyad and Irani: "Multi-Interval Discretization of Continuous-Valued
Attributes for Classification Learning", IJCAI 1993.

Args:
  sketches: one QuantileSketch for each class.
  feature_ids: int64 [F], the features.
  side: 'left' if a boundary belongs to the bin before it, 'right' if it belongs to the bin after
    it.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  The boundaries of all features, float32, and the splits, int64 [F + 1]: feature f has the
  boundaries splits[f] to splits[f + 1]. Buckets takes them in this form.

Raises:
  ValueError: there are no sketches, side is unknown, or feature_ids is not an array of integers.
  TypeError: an item of sketches is not a QuantileSketch.)");
}

}  // namespace twml
