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

std::string TypeOf(const py::handle& object) {
  return py::str(py::type::of(object).attr("__name__")).cast<std::string>();
}

void RequireColumns(const py::array& a, int64_t columns, const char* name) {
  RequireRank(a, 2, name);
  if (a.shape(1) == columns) return;
  RaiseIfError(Invalid(name, " must have ", columns, " columns, got ", a.shape(1)));
}

// A sketch that several Python threads may use; the GIL is released while it works.
class PySketch {
 public:
  PySketch(double epsilon, int64_t exact_values, bool weighted) {
    RaiseIfError(QuantileSketch::Make({epsilon, exact_values, weighted}, &sketch_));
  }
  explicit PySketch(const py::dict& state) {
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
    if (&other == this) throw py::value_error("other must be another sketch, got the same");
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

  py::dict Describe(const ArrayLike& ids_in) {
    const auto ids = ToArray<int64_t>(ids_in, "feature_ids");
    std::vector<double> rows(ids.size() * QuantileSketch::kNumStatistics);
    Locked([&](QuantileSketch& s) { s.Describe(SpanOf(ids), rows.data()); });
    py::dict out;
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

  py::tuple Boundaries(const ArrayLike& ids_in, const ArrayLike& bins_in, const std::string& side,
                       int num_threads) {
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

  py::tuple Values(int64_t id) {
    std::vector<float> values;
    std::vector<double> weights;
    Locked([&](QuantileSketch& s) { s.Values(id, &values, &weights); });
    return py::make_tuple(MoveToArray(std::move(values)), MoveToArray(std::move(weights)));
  }

  py::array_t<int64_t> FeatureIds() {
    return MoveToArray(Locked([](QuantileSketch& s) { return s.FeatureIds(); }));
  }

  // From states of some features each, one after the other.
  static std::unique_ptr<PySketch> FromStates(const py::iterable& states) {
    std::unique_ptr<PySketch> whole;
    for (const py::handle& state : states) {
      if (!py::isinstance<py::dict>(state)) {
        throw py::type_error("states must be dicts as state() gives them, got " + TypeOf(state));
      }
      auto part = std::make_unique<PySketch>(state.cast<py::dict>());
      if (whole == nullptr) {
        whole = std::move(part);
      } else {
        RaiseIfError(whole->sketch_->Splice(part->sketch_.get()));
      }
    }
    if (whole == nullptr) throw py::value_error("states must be at least one, got none");
    return whole;
  }

  py::dict State(int64_t first, std::optional<int64_t> end) {
    const int64_t last = end.value_or(INT64_MAX);
    std::lock_guard<std::mutex> lock(mu_);  // never held by one who waits for the GIL
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
    py::dict out;
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

  static py::tuple MdlCutPoints(const py::iterable& sketches_in, const ArrayLike& ids_in,
                                const std::string& side, int num_threads) {
    const py::list kept(sketches_in);  // alive until the end, whatever they came from
    std::vector<PySketch*> classes;
    for (const py::handle& sketch : kept) {
      if (!py::isinstance<PySketch>(sketch)) {
        throw py::type_error("sketches must be QuantileSketch, got " + TypeOf(sketch));
      }
      classes.push_back(sketch.cast<PySketch*>());
    }
    const auto ids = ToArray<int64_t>(ids_in, "feature_ids");
    if (classes.empty()) throw py::value_error("sketches must be at least one, got none");
    if (side != "left" && side != "right") {
      throw py::value_error("side must be one of 'left', 'right', got '" + side + "'");
    }
    QuantileBoundaries out;
    {
      py::gil_scoped_release release;
      std::vector<const QuantileSketch*> sketches;
      std::vector<std::unique_lock<std::mutex>> locks;
      std::vector<PySketch*> in_order = classes;  // of locking; the same one may be given twice
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
  py::class_<PySketch>(
      m, "QuantileSketch",
      "Quantiles of many streams at once, one mergeable sketch a feature (KLL; see "
      "cc/core/quantile_sketch.h). A rank is wrong by more than epsilon times the "
      "feature's total weight with probability at most 1 %; a feature of at most "
      "exact_values distinct values is kept exactly.")
      .def(py::init<double, int64_t, bool>(), "epsilon"_a = 1e-3, IntArg("exact_values") = 256,
           "weighted"_a = false)
      .def("update", &PySketch::Update, "ids"_a, "values"_a, "weights"_a = py::none(),
           py::kw_only(), IntArg("num_threads") = 0,
           "Takes in values[k] of feature ids[k], with weights[k] or 1. A NaN counts as missing.")
      .def("merge", &PySketch::Merge, "other"_a, py::kw_only(), IntArg("num_threads") = 0,
           "Takes in all that another sketch of the same options has seen.")
      .def("quantiles", &PySketch::Quantiles, "feature_ids"_a, "probabilities"_a, py::kw_only(),
           IntArg("num_threads") = 0,
           "-> float32 [features, probabilities]: the least value whose rank is that share of the "
           "weight; NaN for a feature without values.")
      .def("ranks", &PySketch::Ranks, "ids"_a, "values"_a, py::kw_only(), IntArg("num_threads") = 0,
           "-> float64: the weight of the values <= values[k] of feature ids[k].")
      .def(
          "describe", &PySketch::Describe, "feature_ids"_a,
          "-> dict of float64 [features]: weight (of values), missing (weight of NaNs), rank_error "
          "(proven bound, in weight) and held (numbers in memory).")
      .def(
          "boundaries", &PySketch::Boundaries, "feature_ids"_a, "num_bins"_a, "side"_a = "left",
          py::kw_only(), IntArg("num_threads") = 0,
          "-> (boundaries float32, splits int64 [features + 1]) that cut each feature into at most "
          "num_bins[f] bins of equal weight; into one a value where there are no more values.")
      .def("values", &PySketch::Values, IntArg("feature_id"),
           "-> (values float32 ascending, weights float64) held for one feature.")
      .def("state", &PySketch::State, IntArg("first") = 0, IntArg("last") = py::none(),
           "-> dict of plain arrays, equal sketches giving equal ones: of all features, or of "
           "feature_ids[first:last] (neither negative).")
      .def_static("from_states", &PySketch::FromStates, "states"_a,
                  "The sketch whose states these are, each of other features; read one by one.")
      .def_static(
          "from_state", [](const py::dict& state) { return std::make_unique<PySketch>(state); },
          "state"_a, "The sketch whose state() it is.")
      .def_property_readonly("feature_ids", &PySketch::FeatureIds, "The features seen, ascending.")
      .def_property_readonly("nbytes", &PySketch::Bytes, "Memory held.")
      .def_property_readonly("epsilon", [](const PySketch& s) { return s.options().epsilon; })
      .def_property_readonly("exact_values",
                             [](const PySketch& s) { return s.options().exact_values; })
      .def_property_readonly("weighted", [](const PySketch& s) { return s.options().weighted; })
      .def(py::pickle([](PySketch& s) { return s.State(0, {}); },
                      [](const py::dict& state) { return std::make_unique<PySketch>(state); }));
  m.def(
      "mdl_boundaries", &PySketch::MdlCutPoints, "sketches"_a, "feature_ids"_a, "side"_a = "left",
      py::kw_only(), IntArg("num_threads") = 0,
      "-> (boundaries, splits [features + 1]) by minimum description length (Fayyad & Irani 1993) "
      "from a sketch for each class.");
}

}  // namespace twml
