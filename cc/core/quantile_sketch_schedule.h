// How much the levels of a quantile sketch hold, so that its error stays below epsilon.
#ifndef TWML_CORE_QUANTILE_SKETCH_SCHEDULE_H_
#define TWML_CORE_QUANTILE_SKETCH_SCHEDULE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cc/core/quantile_sketch_feature.h"

namespace twml {

// By the total weight of a feature in units of its lowest level.
//
// While few levels are in use the errors are bounded by their plain sum: a level of weight w costs
// w each time it is halved, however many values it has then. From the fourth stage on their
// variance is what counts. The sizes are the least that were found to keep the bound below epsilon
// with a margin, all along a stream (it is highest after about 900 / epsilon values) and of equal
// parts merged: tests/cc walks through both.
class SketchSchedule {
 public:
  static constexpr int kSummedStages = 3;  // stages whose errors are summed up plainly
  // Times epsilon; the lowest level first.
  static constexpr double kSummedStageCapacity[kSummedStages][kSummedStages] = {
      {1}, {1.2, 1.2}, {1.25, 1.4, 1.2}};
  static constexpr double kTopCapacity = 2.8,
                          kCapacityRatio = 2.0 / 3;  // of the stages after those
  static constexpr int64_t kMinCapacity = 8;
  static constexpr int kStages = kSketchLevels;

  explicit SketchSchedule(double epsilon) {
    for (int stage = 0; stage < kStages; ++stage) {
      double full = 0, capacity = kTopCapacity;
      int64_t sum = 0;
      for (int below = 0; below <= stage; ++below, capacity *= kCapacityRatio) {
        const double wanted =
            stage < kSummedStages ? kSummedStageCapacity[stage][stage - below] : capacity;
        const int64_t whole =
            std::max(kMinCapacity, static_cast<int64_t>(std::ceil(wanted / epsilon)));
        capacity_[stage][below] = whole;
        sum += whole;
        full += std::ldexp(static_cast<double>(whole), stage - below);
      }
      max_values_[stage] = sum * 8 / 7 + 1;
      max_weight_[stage] = full;
    }
  }

  // The number of levels above the lowest that lossy steps may have reached.
  int Stage(double relative_weight) const {
    int stage = 0;
    while (stage + 1 < kStages && relative_weight >= max_weight_[stage]) ++stage;
    return stage;
  }
  // Of the level h above the lowest.
  int64_t Capacity(int stage, int h) const { return capacity_[stage][std::max(0, stage - h)]; }
  // Values held before a lossy step is due, new ones included, and the share of them that are old.
  int64_t MaxValues(int stage) const { return max_values_[stage]; }
  int64_t CompactionTarget(int stage) const { return max_values_[stage] - max_values_[stage] / 8; }

 private:
  double max_weight_[kStages];
  int64_t max_values_[kStages], capacity_[kStages][kStages];
};

}  // namespace twml

#endif  // TWML_CORE_QUANTILE_SKETCH_SCHEDULE_H_
