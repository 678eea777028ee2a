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
  void Flush();

  // Load, Flush and Store, where enough waits.
  void FlushIfFull(SketchFeature* feature);

  // How many waiting items make it worth to sort them in.
  uint32_t BufferLimit() const;

 private:
  size_t num_buffered() const { return buffer_.size() - num_merged_; }
  void MergeBuffered(size_t n);
  void AddWeighted(const float* items, size_t n);
  void AddSorted(int h, const std::vector<float>& values);
  void IncludeLevel(int h);
  void UpdateExtremes(float min, float max);
  int64_t NumSorted() const;
  int LowestLevel() const;
  int Stage() const;
  int64_t CountDistinct();
  uint64_t Random(float a, float b);
  void CompactIfNeeded();
  void PromoteEqualPairs();
  void PromoteEqualPairs(int h);
  void Compact(int h, int stage);

  const QuantileSketchOptions& options_;
  const SketchSchedule& schedule_;
  SketchFeature* feature_ = nullptr;
  std::vector<float> level_[kSketchLevels], buffer_, batch_, scratch_;
  int first_ = 0, last_ = kSketchLevels - 1;  // levels outside are empty
  size_t num_merged_ = 0;                     // of the waiting items
  std::vector<uint32_t> keys_, key_scratch_;
};

}  // namespace twml

#endif  // TWML_CORE_QUANTILE_SKETCH_WORKSPACE_H_
