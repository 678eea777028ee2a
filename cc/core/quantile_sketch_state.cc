// Conversion of a QuantileSketch to plain arrays and back.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/quantile_sketch.h"
#include "cc/core/quantile_sketch_feature.h"
#include "cc/core/quantile_sketch_workspace.h"

namespace twml {
namespace {

using S = QuantileSketchState;

constexpr double kVersion = 1;

Status ReadOptions(const S& state, QuantileSketchOptions* options) {
  const int64_t n = state.feature_ids.size();
  if (state.config.size() != S::kConfig || state.config[0] != kVersion) {
    return Invalid("config must have ", S::kConfig, " items, the first of which is the version ",
                   kVersion, ", got ", state.config.size(), " items",
                   state.config.empty() ? "" : " with the version ",
                   state.config.empty() ? "" : std::to_string(state.config[0]));
  }
  if (state.totals.size() != n * S::kTotals || state.counters.size() != n * S::kCounters) {
    return Invalid("totals and counters must have ", n, " rows of ", S::kTotals, " and ",
                   S::kCounters, " items, got ", state.totals.size(), " and ",
                   state.counters.size(), " items");
  }
  options->epsilon = state.config[1];
  if (!(state.config[2] >= 0 && state.config[2] <= 1e9)) {
    return Invalid("config[2] (exact_values) = ", state.config[2], " is out of range [0, 1e9]");
  }
  options->exact_values = static_cast<int64_t>(state.config[2]);
  options->weighted = state.config[3] != 0;
  return Status();
}

// Whether x is in the range of a float. A NaN is not.
bool IsFloat(double x) {
  return std::isinf(x) || std::abs(x) <= static_cast<double>(std::numeric_limits<float>::max());
}

// Reads and validates one feature after the other.
class StateReader {
 public:
  StateReader(const S& state, bool weighted)
      : state_(state), weighted_(weighted), num_runs_(state.runs.size() / S::kRun) {}

  Status Read(int64_t i, SketchFeature* to) {
    const double* totals = &state_.totals[i * S::kTotals];
    const int64_t* counters = &state_.counters[i * S::kCounters];
    TWML_RETURN_IF_ERROR(CheckNumbers(state_.feature_ids[i], totals, counters));
    auto levels = std::make_unique<SketchLevels>();
    int64_t stored;
    TWML_RETURN_IF_ERROR(ReadRuns(counters[3], &levels->runs, &stored));
    const int64_t size = stored + counters[2];
    TWML_RETURN_IF_ERROR(CheckBuffered(stored, size));
    to->Reserve(static_cast<uint32_t>(size));
    std::copy_n(state_.items.data() + item_, size, to->items);
    to->size = static_cast<uint32_t>(size);
    to->num_sorted = static_cast<uint32_t>(stored);
    to->weight = totals[0];
    to->missing = totals[1];
    if (counters[3] > 0 || counters[0] > 0 || totals[2] <= totals[3]) {
      levels->coin_flips = counters[0];
      levels->compactions = counters[1];
      levels->min = static_cast<float>(totals[2]);
      levels->max = static_cast<float>(totals[3]);
      levels->early_sum = totals[4];
      levels->early_variance = totals[5];
      levels->late_variance = totals[6];
      to->levels = std::move(levels);
    }
    item_ += size;
    return Status();
  }

  Status CheckEnd() const {
    if (run_ == num_runs_ && state_.runs.size() % S::kRun == 0 && item_ == state_.items.size()) {
      return Status();
    }
    return Invalid("runs and items must have the sizes that counters give, ", run_, " and ", item_,
                   ", got ", num_runs_, " and ", state_.items.size());
  }

 private:
  Status CheckNumbers(int64_t id, const double* totals, const int64_t* counters) const {
    const int64_t entry = weighted_ ? 2 : 1;
    if (counters[0] < 0 || counters[0] > kMaxCount || counters[1] < 0 || counters[1] > kMaxCount ||
        counters[2] < 0 || counters[2] > state_.items.size() || counters[2] % entry != 0 ||
        counters[3] < 0 || counters[3] > num_runs_ - run_) {
      return Invalid("counters of feature ", id, " must be non-negative and fit runs and items");
    }
    for (int64_t j = 0; j < S::kTotals; ++j) {
      const bool extreme = j == 2 || j == 3;  // a float stored as a double
      if (extreme ? !IsFloat(totals[j]) : !(totals[j] >= 0)) {
        return Invalid("totals of feature ", id,
                       " must be non-negative numbers, and min and max floats, got ", totals[j],
                       " in column ", j);
      }
    }
    return Status();
  }

  Status ReadRuns(int64_t count, std::vector<SketchRun>* runs, int64_t* stored) {
    int64_t last_level = -1;
    *stored = 0;
    for (int64_t r = 0; r < count; ++r, ++run_) {
      const int32_t level = state_.runs[run_ * S::kRun], size = state_.runs[run_ * S::kRun + 1];
      if (level <= last_level || level >= kSketchLevels || (!weighted_ && level < kSketchUnit) ||
          size < 1 || size > state_.items.size() - item_ - *stored) {
        return Invalid("runs[", run_, "] = (", level, ", ", size, ") is out of range");
      }
      const int64_t first = item_ + *stored;
      for (int64_t at = first; at < first + size; ++at) {
        const float value = state_.items[at];
        if (std::isnan(value) || (at > first && value < state_.items[at - 1])) {
          return Invalid("items[", at, "] = ", value,
                         ", but the values of a run must be non-decreasing numbers");
        }
      }
      last_level = level;
      *stored += size;
      runs->push_back({level, size});
    }
    return Status();
  }

  // Validates the buffered items: items `stored` to `size` of the feature.
  Status CheckBuffered(int64_t stored, int64_t size) const {
    if (size > state_.items.size() - item_ || size > INT32_MAX) {
      return Invalid("items must have the size that counters and runs give, got ",
                     state_.items.size());
    }
    for (int64_t j = stored; j < size; ++j) {
      const float value = state_.items[item_ + j];
      const bool weight = weighted_ && (j - stored) % 2 == 1;
      if (std::isnan(value) || (weight && !(value > 0 && value <= kMaxSketchWeight))) {
        return Invalid("items[", item_ + j, "] = ", value, " is out of range");
      }
    }
    return Status();
  }

  const S& state_;
  const bool weighted_;
  const int64_t num_runs_;
  int64_t run_ = 0, item_ = 0;
};

}  // namespace

QuantileSketch::StateSizes QuantileSketch::Sizes(int64_t first, int64_t last) const {
  StateSizes sizes{0, 0, 0};
  for (const int64_t f : AscendingOrder(first, last)) {
    ++sizes.features;
    sizes.items += feature(f).size;
    if (feature(f).levels) sizes.runs += static_cast<int64_t>(feature(f).levels->runs.size());
  }
  return sizes;
}

void QuantileSketch::Write(const MutableQuantileSketchState& out, int64_t first,
                           int64_t last) const {
  out.config[0] = kVersion;
  out.config[1] = options_.epsilon;
  out.config[2] = static_cast<double>(options_.exact_values);
  out.config[3] = options_.weighted;
  int64_t at = 0;
  int32_t* run_out = out.runs.data();
  float* item_out = out.items.data();
  const SketchLevels none;
  for (const int64_t f : AscendingOrder(first, last)) {
    const SketchFeature& from = feature(f);
    const SketchLevels& levels = from.levels ? *from.levels : none;
    out.feature_ids[at] = from.id;
    const double totals[] = {from.weight,         from.missing,     levels.min,
                             levels.max,          levels.early_sum, levels.early_variance,
                             levels.late_variance};
    std::copy_n(totals, MutableQuantileSketchState::kTotals,
                &out.totals[at * MutableQuantileSketchState::kTotals]);
    const int64_t counters[] = {levels.coin_flips, levels.compactions, from.num_buffered(),
                                static_cast<int64_t>(levels.runs.size())};
    std::copy_n(counters, MutableQuantileSketchState::kCounters,
                &out.counters[at * MutableQuantileSketchState::kCounters]);
    for (const SketchRun& run : levels.runs) {
      *run_out++ = run.level;
      *run_out++ = run.size;
    }
    item_out = std::copy_n(from.items, from.size, item_out);
    ++at;
  }
}

Status QuantileSketch::FromState(const QuantileSketchState& state, const ParallelFor& parallel_for,
                                 std::unique_ptr<QuantileSketch>* out) {
  QuantileSketchOptions options;
  TWML_RETURN_IF_ERROR(ReadOptions(state, &options));
  std::unique_ptr<QuantileSketch> made;
  TWML_RETURN_IF_ERROR(Make(options, &made));
  StateReader reader(state, options.weighted);
  const int64_t n = state.feature_ids.size();
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0 && state.feature_ids[i] <= state.feature_ids[i - 1]) {
      return Invalid("feature_ids must be strictly increasing: feature_ids[", i,
                     "] = ", state.feature_ids[i], " after ", state.feature_ids[i - 1]);
    }
    SketchFeature& to = made->feature(made->FindOrAdd(state.feature_ids[i]));
    TWML_RETURN_IF_ERROR(reader.Read(i, &to));
  }
  TWML_RETURN_IF_ERROR(reader.CheckEnd());
  constexpr int64_t kCost = 20'000;
  parallel_for(n, kCost, [&](int64_t begin, int64_t end) {
    SketchWorkspace work(made->options_, *made->schedule_);
    for (int64_t f = begin; f < end; ++f) {  // also computes the buffer limits
      work.Load(&made->feature(f));
      work.Flush();
      work.Store();
    }
  });
  *out = std::move(made);
  return Status();
}

}  // namespace twml
