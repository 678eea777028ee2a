// Queries of a QuantileSketch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cc/core/quantile_sketch.h"
#include "cc/core/quantile_sketch_feature.h"

namespace twml {

struct QuantileSketch::CumulativeEntry {
  float value;
  double weight;
};

std::vector<int64_t> QuantileSketch::FeatureIds() const {
  std::vector<int64_t> ids = AscendingOrder();
  for (int64_t& id : ids) id = feature(id).id;
  return ids;
}

// The distinct values in ascending order, each with the sum of the weights up to and including it.
void QuantileSketch::CumulativeEntries(const SketchFeature& feature,
                                       std::vector<CumulativeEntry>* entries) const {
  entries->clear();
  const float* at = feature.items;
  if (feature.levels != nullptr) {
    for (const SketchRun& run : feature.levels->runs) {
      for (int32_t i = 0; i < run.size; ++i)
        entries->push_back({*at++, SketchLevelWeight(run.level)});
    }
  }
  const uint32_t entry = options_.weighted ? 2 : 1;
  for (uint32_t i = feature.num_sorted; i < feature.size; i += entry) {
    const double weight = entry == 2 ? static_cast<double>(feature.items[i + 1]) : 1.0;
    entries->push_back({feature.items[i], weight});
  }
  std::sort(entries->begin(), entries->end(),
            [](const CumulativeEntry& a, const CumulativeEntry& b) { return a.value < b.value; });
  size_t kept = 0;
  double sum = 0;
  for (size_t i = 0; i < entries->size(); ++i) {
    sum += (*entries)[i].weight;
    if (kept > 0 && (*entries)[kept - 1].value == (*entries)[i].value) --kept;
    (*entries)[kept++] = {(*entries)[i].value, sum};
  }
  entries->resize(kept);
}

Status QuantileSketch::Quantiles(Span<const int64_t> ids, Span<const double> probabilities,
                                 const ParallelFor& parallel_for, float* out) const {
  for (int64_t i = 0; i < probabilities.size(); ++i) {
    if (!(probabilities[i] >= 0 && probabilities[i] <= 1)) {
      return Invalid("probabilities[", i, "] = ", probabilities[i], " is out of range [0, 1]");
    }
  }
  constexpr int64_t kCost = 20'000;
  parallel_for(ids.size(), kCost, [&](int64_t begin, int64_t end) {
    std::vector<CumulativeEntry> entries;
    for (int64_t q = begin; q < end; ++q) {
      float* row = out + q * probabilities.size();
      std::fill_n(row, probabilities.size(), std::numeric_limits<float>::quiet_NaN());
      const int64_t f = index_.Find(ids[q]);
      if (f < 0) continue;
      CumulativeEntries(feature(f), &entries);
      if (entries.empty()) continue;
      float min = entries.front().value, max = entries.back().value;
      if (const SketchLevels* levels = feature(f).levels.get()) {
        min = std::min(min, levels->min);
        max = std::max(max, levels->max);
      }
      for (int64_t i = 0; i < probabilities.size(); ++i) {
        const double wanted = probabilities[i] * entries.back().weight;
        const auto at =
            std::partition_point(entries.begin(), entries.end(),
                                 [&](const CumulativeEntry& e) { return e.weight < wanted; });
        row[i] = probabilities[i] == 0 ? min : probabilities[i] == 1 ? max : at->value;
      }
    }
  });
  return Status();
}

Status QuantileSketch::Ranks(Span<const int64_t> ids, Span<const float> values,
                             const ParallelFor& parallel_for, double* out) const {
  if (values.size() != ids.size()) {
    return Invalid("values must have ", ids.size(), " items, one for each id, got ", values.size());
  }
  constexpr int64_t kCost = 20'000;
  parallel_for(ids.size(), kCost, [&](int64_t begin, int64_t end) {
    std::vector<CumulativeEntry> entries;
    int64_t current = -1;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t f = index_.Find(ids[k]);
      out[k] = 0;
      if (f < 0) continue;
      if (f != current)
        CumulativeEntries(feature(f),
                          &entries);  // neighboring entries mostly have the same feature
      current = f;
      const auto at =
          std::partition_point(entries.begin(), entries.end(),
                               [&](const CumulativeEntry& e) { return e.value <= values[k]; });
      if (at != entries.begin()) out[k] = (at - 1)->weight;
    }
  });
  return Status();
}

void QuantileSketch::Describe(Span<const int64_t> ids, double* out) const {
  for (int64_t q = 0; q < ids.size(); ++q) {
    double* row = out + q * kNumStatistics;
    std::fill_n(row, kNumStatistics, 0.0);
    const int64_t f = index_.Find(ids[q]);
    if (f < 0) continue;
    const SketchFeature& at = feature(f);
    row[0] = at.weight;
    row[1] = at.missing;
    if (const SketchLevels* levels = at.levels.get()) {
      const double tail = 2 * std::log(2 / kFailureProbability);
      row[2] = std::min(levels->early_sum + std::sqrt(tail * levels->late_variance),
                        std::sqrt(tail * (levels->early_variance + levels->late_variance)));
    }
    row[3] = at.size;
  }
}

Status QuantileSketch::Boundaries(Span<const int64_t> ids, Span<const int64_t> bins, bool right,
                                  const ParallelFor& parallel_for, QuantileBoundaries* out) const {
  if (bins.size() != ids.size()) {
    return Invalid("num_bins must have ", ids.size(), " items, one for each id, got ", bins.size());
  }
  for (int64_t q = 0; q < bins.size(); ++q) {
    if (bins[q] < 1) return Invalid("num_bins[", q, "] = ", bins[q], ", expected at least 1");
  }
  std::vector<std::vector<float>> cuts(ids.size());
  constexpr int64_t kCost = 20'000;
  parallel_for(ids.size(), kCost, [&](int64_t begin, int64_t end) {
    std::vector<CumulativeEntry> entries;
    for (int64_t q = begin; q < end; ++q) {
      const int64_t f = index_.Find(ids[q]);
      if (f < 0) continue;
      CumulativeEntries(feature(f), &entries);
      const int64_t n = static_cast<int64_t>(entries.size());
      const double wanted = static_cast<double>(bins[q]);
      double passed = 0;  // the number of quantiles at or before the value
      for (int64_t i = 0; i + 1 < n; ++i) {
        const double now = std::floor(entries[i].weight * wanted / entries.back().weight);
        if (n <= bins[q] || now > passed) cuts[q].push_back(entries[right ? i + 1 : i].value);
        passed = now;
      }
    }
  });
  out->boundaries.clear();
  out->splits.assign(1, 0);
  for (const auto& of_feature : cuts) {
    out->boundaries.insert(out->boundaries.end(), of_feature.begin(), of_feature.end());
    out->splits.push_back(static_cast<int64_t>(out->boundaries.size()));
  }
  return Status();
}

void QuantileSketch::Values(int64_t id, std::vector<float>* values,
                            std::vector<double>* weights) const {
  values->clear();
  weights->clear();
  const int64_t f = index_.Find(id);
  if (f < 0) return;
  std::vector<CumulativeEntry> entries;
  CumulativeEntries(feature(f), &entries);
  double before = 0;
  for (const CumulativeEntry& e : entries) {
    values->push_back(e.value);
    weights->push_back(e.weight - before);
    before = e.weight;
  }
}

}  // namespace twml
