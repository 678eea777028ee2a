// How much the levels of a quantile sketch hold, so that its error stays below epsilon.
#ifndef TWML_CORE_SKETCH_SCHEDULE_H_
#define TWML_CORE_SKETCH_SCHEDULE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cc/core/sketch_feature.h"

namespace twml {

// By the total weight of a feature in units of its lowest level.
//
// While few levels are in use, the errors are bounded by their plain sum: level h contributes at
// most 1 / capacity(h) of the weight that passes it, and the capacities make that epsilon. From
// the third level on their variance is what counts. tests/cc walks through the schedule.
class SketchSchedule {
 public:
  static constexpr double kShrink = 2.0 / 3;
  static constexpr int kEarly = 3;  // stages whose errors are summed up plainly
  static constexpr double kTopTimesEpsilon[kEarly + 1] = {1, 1.55, 3.8, 4};
  static constexpr int64_t kLeast = 8;
  static constexpr int kStages = kSketchLevels;

  explicit SketchSchedule(double epsilon) {
    for (int stage = 0; stage < kStages; ++stage) {
      double full = 0, capacity = kTopTimesEpsilon[std::min(stage, kEarly)] / epsilon;
      int64_t sum = 0;
      for (int below = 0; below <= stage; ++below, capacity *= kShrink) {
        const int64_t whole = std::max(kLeast, static_cast<int64_t>(std::ceil(capacity)));
        capacity_[stage][below] = whole;
        sum += whole;
        full += std::ldexp(static_cast<double>(whole), stage - below);
      }
      room_[stage] = sum * 8 / 7 + 1;
      outgrown_[stage] = full;
    }
  }

  // The number of levels above the lowest that lossy steps may have reached.
  int Stage(double relative_weight) const {
    int stage = 0;
    while (stage + 1 < kStages && relative_weight >= outgrown_[stage]) ++stage;
    return stage;
  }
  // Of the level h above the lowest.
  int64_t Capacity(int stage, int h) const { return capacity_[stage][std::max(0, stage - h)]; }
  // Values held before a lossy step is due, new ones included, and the share of them that are old.
  int64_t Room(int stage) const { return room_[stage]; }
  int64_t Old(int stage) const { return room_[stage] - room_[stage] / 8; }

 private:
  double outgrown_[kStages];
  int64_t room_[kStages], capacity_[kStages][kStages];
};

}  // namespace twml

#endif  // TWML_CORE_SKETCH_SCHEDULE_H_
