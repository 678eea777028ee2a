// The capacities of a quantile sketch's levels, chosen such that its error stays below epsilon.
#ifndef TWML_CORE_QUANTILE_SKETCH_SCHEDULE_H_
#define TWML_CORE_QUANTILE_SKETCH_SCHEDULE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cc/core/quantile_sketch_feature.h"

namespace twml {

// The capacities depend on the stage, the number of levels that compactions may have reached, which
// follows from the total weight of a feature in units of its lowest level.
//
// In the first stages the errors are bounded by their sum: a compaction of a level of weight w
// costs w, however many values the level has. From the fourth stage on they are bounded by their
// variance. The capacities are the smallest that were found to keep the bound below epsilon with a
// margin, along a whole stream (the bound is largest after about 900 / epsilon values) and for
// merged parts of equal size. tests/cc checks both.
class SketchSchedule {
 public:
  static constexpr int kSummedStages = 3;  // stages whose errors are bounded by their sum
  // In units of 1 / epsilon, for each of these stages, the lowest level first.
  static constexpr double kSummedStageCapacity[kSummedStages][kSummedStages] = {
      {1}, {1.2, 1.2}, {1.25, 1.4, 1.2}};
  static constexpr double kTopCapacity = 2.8,
                          kCapacityRatio = 2.0 / 3;  // for the later stages
  static constexpr int64_t kMinCapacity = 8;
  static constexpr int kStages = kSketchLevels;

  explicit SketchSchedule(double epsilon) {
    for (int stage = 0; stage < kStages; ++stage) {
      double weight = 0, capacity = kTopCapacity;
      int64_t sum = 0;
      for (int below = 0; below <= stage; ++below, capacity *= kCapacityRatio) {
        const double wanted =
            stage < kSummedStages ? kSummedStageCapacity[stage][stage - below] : capacity;
        const int64_t whole =
            std::max(kMinCapacity, static_cast<int64_t>(std::ceil(wanted / epsilon)));
        capacity_[stage][below] = whole;
        sum += whole;
        weight += std::ldexp(static_cast<double>(whole), stage - below);
      }
      max_values_[stage] = sum * 8 / 7 + 1;
      max_weight_[stage] = weight;
    }
  }

  // The stage of a feature by its total weight in units of the lowest level.
  int Stage(double relative_weight) const {
    int stage = 0;
    while (stage + 1 < kStages && relative_weight >= max_weight_[stage]) ++stage;
    return stage;
  }
  // The capacity of the level that is h levels above the lowest.
  int64_t Capacity(int stage, int h) const { return capacity_[stage][std::max(0, stage - h)]; }
  // The number of values, buffered ones included, that triggers compactions, and the number that
  // they leave.
  int64_t MaxValues(int stage) const { return max_values_[stage]; }
  int64_t CompactionTarget(int stage) const { return max_values_[stage] - max_values_[stage] / 8; }

 private:
  double max_weight_[kStages];
  int64_t max_values_[kStages], capacity_[kStages][kStages];
};

}  // namespace twml

#endif  // TWML_CORE_QUANTILE_SKETCH_SCHEDULE_H_
