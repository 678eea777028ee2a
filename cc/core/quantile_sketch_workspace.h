// The KLL levels of one feature spread out, and the work on them; cc/core/quantile_sketch.h says
// what it does and why the error stays bounded.
#ifndef TWML_CORE_QUANTILE_SKETCH_WORKSPACE_H_
#define TWML_CORE_QUANTILE_SKETCH_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/quantile_sketch.h"
#include "cc/core/quantile_sketch_feature.h"
#include "cc/core/quantile_sketch_schedule.h"

namespace twml {

// Reused from feature to feature. Load comes first; nothing of the feature changes before Store.
class SketchWorkspace {
 public:
  SketchWorkspace(const QuantileSketchOptions& options, const SketchSchedule& schedule)
      : options_(options), schedule_(schedule) {}

  void Load(SketchFeature* feature);
  void Store();

  // Adds the runs of another feature; its waiting items are the caller's to append.
  void Add(const SketchFeature& other);

  // Sorts in what waits, in steps that do not depend on how it came.
  void Settle();

  // Load, Settle and Store, where enough waits.
  void SettleIfDue(SketchFeature* feature);

  // How many waiting items make it worth to sort them in.
  uint32_t Limit() const;

 private:
  size_t waiting() const { return waiting_.size() - sorted_in_; }
  void SortIn(size_t n);
  void AddWeighted(const float* items, size_t n);
  void AddSorted(int h, const std::vector<float>& values);
  void Occupy(int h);
  void Extend(float min, float max);
  int64_t Stored() const;
  int Lowest() const;
  int Stage() const;
  int64_t Distinct();
  uint64_t Random(float a, float b);
  void MakeRoom();
  void PairEqual();
  void PairEqual(int h);
  void Halve(int h, int stage);

  const QuantileSketchOptions& options_;
  const SketchSchedule& schedule_;
  SketchFeature* feature_ = nullptr;
  std::vector<float> level_[kSketchLevels], waiting_, batch_, scratch_;
  int first_ = 0, last_ = kSketchLevels - 1;  // levels outside are empty
  size_t sorted_in_ = 0;                      // of the waiting items
  std::vector<uint32_t> keys_, other_keys_;
};

}  // namespace twml

#endif  // TWML_CORE_QUANTILE_SKETCH_WORKSPACE_H_
