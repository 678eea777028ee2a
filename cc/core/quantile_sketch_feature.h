// What a quantile sketch holds of one feature.
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
constexpr double kMaxSketchWeight = 2147483648.0;  // of one value

inline double SketchLevelWeight(int level) { return std::ldexp(1.0, level - kSketchUnit); }

struct SketchRun {
  int32_t level;
  int32_t size;
};

// Counts stop here, so that those of a hostile state cannot overflow. No stream is that long.
constexpr int64_t kMaxCount = int64_t{1} << 62;
inline void SaturatingAdd(int64_t* count, int64_t more) {
  *count = std::min(kMaxCount, *count + std::min(kMaxCount - 1, more));
}

struct SketchLevels {
  std::vector<SketchRun> runs;              // ascending levels, none empty
  int64_t coin_flips = 0, compactions = 0;  // thrown at all, thrown to make room; see SaturatingAdd
  double early_sum = 0, early_variance = 0, late_variance = 0;
  float min = std::numeric_limits<float>::infinity(), max = -std::numeric_limits<float>::infinity();
};

// A cache line, so that an update touches one here and one in the items.
struct alignas(64) SketchFeature {
  float* items = nullptr;  // the runs' values, then what is not sorted in yet
  uint32_t size = 0, capacity = 0;
  uint32_t num_sorted = 0;    // items of the runs
  uint32_t buffer_limit = 0;  // items not sorted in that make it worth to do so
  double weight = 0, missing = 0;
  int64_t id = 0;
  std::unique_ptr<SketchLevels> levels;  // none before its values are sorted in for the first time

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

  // Values that were not there before, to wait for being sorted in; a NaN is counted only.
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

  // In a weighted sketch, whose items are pairs.
  void Append(float value, float of_weight) {
    if (std::isnan(value)) {
      missing += of_weight;
      return;
    }
    weight += of_weight;
    if (of_weight == 0) return;
    Reserve(size + 2);
    items[size++] = value + 0.0f;
    items[size++] = of_weight;
  }

  void PrefetchEnd() const { __builtin_prefetch(items + size, 1); }

  // Grows by an eighth at least, but not for that beyond where it will be sorted in.
  void Reserve(uint32_t wanted) {
    if (wanted <= capacity) return;
    constexpr uint32_t kMinCapacity = 4;
    const uint32_t due = std::max(num_sorted + buffer_limit, kMinCapacity);
    Resize(std::max(wanted, std::min(capacity + std::max(capacity / 8, kMinCapacity), due)));
  }
  void Shrink(uint32_t most) {
    if (capacity > most + most / 8) Resize(most);
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
