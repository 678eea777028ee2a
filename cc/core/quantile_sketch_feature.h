// The data of one feature in a quantile sketch.
#ifndef TWML_CORE_QUANTILE_SKETCH_FEATURE_H_
#define TWML_CORE_QUANTILE_SKETCH_FEATURE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace twml {

constexpr int kSketchLevels = 64;
constexpr int kSketchUnit = 32;                    // the level of weight 1
constexpr double kMaxSketchWeight = 2147483648.0;  // the largest weight of one value

inline double SketchLevelWeight(int level) { return std::ldexp(1.0, level - kSketchUnit); }

struct SketchRun {
  int32_t level;
  int32_t size;
};

// Counts saturate here, so that the counts of a malicious state cannot overflow. No stream is that
// long.
constexpr int64_t kMaxCount = int64_t{1} << 62;
inline void SaturatingAdd(int64_t* count, int64_t more) {
  *count = std::min(kMaxCount, *count + std::min(kMaxCount - 1, more));
}

struct SketchLevels {
  std::vector<SketchRun> runs;              // non-empty runs, in ascending order of levels
  int64_t coin_flips = 0, compactions = 0;  // see SaturatingAdd
  double early_sum = 0, early_variance = 0, late_variance = 0;
  float min = std::numeric_limits<float>::infinity(), max = -std::numeric_limits<float>::infinity();
};

// One cache line, so that an update touches one line here and one in `items`.
struct alignas(64) SketchFeature {
  float* items = nullptr;  // the values of the runs, then the buffered items
  uint32_t size = 0, capacity = 0;
  uint32_t num_sorted = 0;    // number of items in runs
  uint32_t buffer_limit = 0;  // number of buffered items that triggers sorting
  double weight = 0, missing = 0;
  int64_t id = 0;
  std::unique_ptr<SketchLevels> levels;  // null until items are sorted for the first time

  SketchFeature() = default;
  SketchFeature(const SketchFeature&) = delete;
  SketchFeature& operator=(const SketchFeature&) = delete;
  ~SketchFeature() { std::free(items); }

  void Swap(SketchFeature* other) {
    std::swap(items, other->items);
    std::swap(size, other->size);
    std::swap(capacity, other->capacity);
    std::swap(num_sorted, other->num_sorted);
    std::swap(buffer_limit, other->buffer_limit);
    std::swap(weight, other->weight);
    std::swap(missing, other->missing);
    std::swap(id, other->id);
    levels.swap(other->levels);
  }

  uint32_t num_buffered() const { return size - num_sorted; }

  // Appends values to the buffer. NaNs are only counted.
  void Append(const float* values, int64_t n) {
    Reserve(size + static_cast<uint32_t>(n));
    uint32_t end = size;
    for (int64_t k = 0; k < n; ++k) {
      items[end] = values[k] + 0.0f;  // -0 becomes 0
      end += values[k] == values[k];
    }
    const uint32_t taken = end - size;
    weight += taken;
    missing += static_cast<double>(n - taken);
    size = end;
  }

  // The same for a weighted sketch, whose buffered items are pairs (value, weight).
  void Append(float value, float value_weight) {
    if (std::isnan(value)) {
      missing += value_weight;
      return;
    }
    if (value_weight == 0) return;
    Reserve(size + 2);
    weight += value_weight;
    items[size++] = value + 0.0f;
    items[size++] = value_weight;
  }

  void PrefetchEnd() const { __builtin_prefetch(items + size, 1); }

  // Grows by at least an eighth, but beyond the size at which the buffer is flushed only if needed.
  void Reserve(uint32_t wanted) {
    if (wanted <= capacity) return;
    constexpr uint32_t kMinCapacity = 4;
    const uint32_t full_size = std::max(num_sorted + buffer_limit, kMinCapacity);
    Resize(std::max(wanted, std::min(capacity + std::max(capacity / 8, kMinCapacity), full_size)));
  }
  void Shrink(uint32_t wanted) {
    if (capacity > wanted + wanted / 8) Resize(wanted);
  }
  void Resize(uint32_t wanted) {
    void* resized = std::realloc(items, wanted * sizeof(float));
    if (resized == nullptr) throw std::bad_alloc();
    items = static_cast<float*>(resized);
    capacity = wanted;
  }
};

}  // namespace twml

#endif  // TWML_CORE_QUANTILE_SKETCH_FEATURE_H_
