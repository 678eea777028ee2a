// The state of a quantile sketch in arrays of its own, for the C++ tests and the fuzz targets.
#ifndef TWML_TESTS_CC_SKETCH_ARRAYS_H_
#define TWML_TESTS_CC_SKETCH_ARRAYS_H_

#include <cstdint>
#include <vector>

#include "cc/core/quantile_sketch.h"

namespace twml {

struct SketchArrays {
  std::vector<double> config, totals;
  std::vector<int64_t> feature_ids, counters;
  std::vector<int32_t> runs;
  std::vector<float> items;

  SketchArrays() = default;
  explicit SketchArrays(const QuantileSketch& sketch) {
    using S = QuantileSketchState;
    const auto sizes = sketch.Sizes();
    config.resize(S::kConfig);
    feature_ids.resize(sizes.features);
    totals.resize(sizes.features * S::kTotals);
    counters.resize(sizes.features * S::kCounters);
    runs.resize(sizes.runs * S::kRun);
    items.resize(sizes.items);
    sketch.Write({config, feature_ids, totals, counters, runs, items});
  }
  QuantileSketchState view() const { return {config, feature_ids, totals, counters, runs, items}; }
};

}  // namespace twml

#endif  // TWML_TESTS_CC_SKETCH_ARRAYS_H_
