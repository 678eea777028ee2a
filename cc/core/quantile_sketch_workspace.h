// The operations on the KLL levels of one feature. cc/core/quantile_sketch.h describes the
// algorithm and its error bound.
#ifndef TWML_CORE_QUANTILE_SKETCH_WORKSPACE_H_
#define TWML_CORE_QUANTILE_SKETCH_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/quantile_sketch.h"
#include "cc/core/quantile_sketch_feature.h"
#include "cc/core/quantile_sketch_schedule.h"

namespace twml {

// Working memory that is reused for many features. Load a feature before all other calls; it does
// not change before Store.
class SketchWorkspace {
 public:
  SketchWorkspace(const QuantileSketchOptions& options, const SketchSchedule& schedule)
      : options_(options), schedule_(schedule) {}

  void Load(SketchFeature* feature);
  void Store();

  // Adds the runs of another feature. The caller appends its buffered items.
  void Add(const SketchFeature& other);

  // Sorts the buffered items and merges them into the levels, in steps that do not depend on how
  // the items arrived.
  void Flush();

  // Calls Load, Flush and Store if the buffer is full.
  void FlushIfFull(SketchFeature* feature);

  // The number of buffered items that triggers sorting.
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
  int first_ = 0, last_ = kSketchLevels - 1;  // levels outside this range are empty
  size_t num_merged_ = 0;                     // items of the buffer that were merged
  std::vector<uint32_t> keys_, key_scratch_;
};

}  // namespace twml

#endif  // TWML_CORE_QUANTILE_SKETCH_WORKSPACE_H_
