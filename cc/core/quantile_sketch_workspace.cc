#include "cc/core/quantile_sketch_workspace.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "cc/core/float_sort.h"
#include "cc/core/hash.h"

namespace twml {
namespace {

constexpr int kWeightBits = 16;  // significant bits of a weight

// Merges the sorted b into the sorted a. The loop has no branch that could be mispredicted.
void MergeInto(std::vector<float>* a, const std::vector<float>& b, std::vector<float>* scratch) {
  if (b.empty()) return;
  if (a->empty() || a->back() <= b.front()) {
    a->insert(a->end(), b.begin(), b.end());
    return;
  }
  scratch->resize(a->size() + b.size());
  const float *x = a->data(), *x_end = x + a->size(), *y = b.data(), *y_end = y + b.size();
  float* out = scratch->data();
  while (x != x_end && y != y_end) {
    const bool second = *y < *x;
    *out++ = second ? *y : *x;
    x += !second;
    y += second;
  }
  out = std::copy(x, x_end, out);
  std::copy(y, y_end, out);
  a->swap(*scratch);
}

bool HasEqualNeighbors(const std::vector<float>& sorted) {
  uint32_t equal = 0;  // as wide as a float, which lets the compiler vectorize
  for (size_t i = 1; i < sorted.size(); ++i) equal += sorted[i] == sorted[i - 1];
  return equal > 0;
}

}  // namespace

void SketchWorkspace::Load(SketchFeature* feature) {
  feature_ = feature;
  if (feature->levels == nullptr) feature->levels = std::make_unique<SketchLevels>();
  for (int h = first_; h <= last_; ++h) level_[h].clear();
  first_ = kSketchLevels;
  last_ = -1;
  const float* at = feature->items;
  for (const SketchRun& run : feature->levels->runs) {
    level_[run.level].assign(at, at + run.size);
    IncludeLevel(run.level);
    at += run.size;
  }
  buffer_.assign(feature->items + feature->num_sorted, feature->items + feature->size);
  num_merged_ = 0;
}

void SketchWorkspace::Store() {
  SketchLevels& levels = *feature_->levels;
  // All memory is allocated before the feature changes.
  size_t runs = 0;
  for (int h = first_; h <= last_; ++h) runs += level_[h].empty() ? 0 : 1;
  levels.runs.reserve(runs);
  feature_->Reserve(static_cast<uint32_t>(NumSorted() + static_cast<int64_t>(num_buffered())));
  levels.runs.clear();
  feature_->size = 0;
  for (int h = first_; h <= last_; ++h) {
    if (level_[h].empty()) continue;
    levels.runs.push_back({h, static_cast<int32_t>(level_[h].size())});
    std::copy(level_[h].begin(), level_[h].end(), feature_->items + feature_->size);
    feature_->size += static_cast<uint32_t>(level_[h].size());
  }
  feature_->num_sorted = feature_->size;
  std::copy_n(buffer_.data() + num_merged_, num_buffered(), feature_->items + feature_->size);
  feature_->size += static_cast<uint32_t>(num_buffered());
  feature_->buffer_limit = BufferLimit();
  feature_->Shrink(feature_->size + feature_->buffer_limit);
}

void SketchWorkspace::Add(const SketchFeature& other) {
  const float* at = other.items;
  for (const SketchRun& run : other.levels->runs) {
    batch_.assign(at, at + run.size);
    AddSorted(run.level, batch_);
    at += run.size;
  }
  SketchLevels& levels = *feature_->levels;
  SaturatingAdd(&levels.coin_flips, other.levels->coin_flips);
  SaturatingAdd(&levels.compactions, other.levels->compactions);
  levels.early_sum += other.levels->early_sum;
  levels.early_variance += other.levels->early_variance;
  levels.late_variance += other.levels->late_variance;
  UpdateExtremes(other.levels->min, other.levels->max);
  CompactIfNeeded();
}

void SketchWorkspace::FlushIfFull(SketchFeature* feature) {
  if (feature->num_buffered() < feature->buffer_limit) return;
  Load(feature);
  Flush();
  Store();
}

uint32_t SketchWorkspace::BufferLimit() const {
  constexpr int64_t kMinBuffer = 32;
  const int64_t sorted = NumSorted(), limit = schedule_.MaxValues(Stage());
  // The buffer of a small feature is flushed early, so that repeated values take no memory.
  const int64_t most = std::max({limit - sorted, limit / 8, int64_t{1}});
  return static_cast<uint32_t>(std::min(most, std::max(kMinBuffer, sorted)) *
                               (options_.weighted ? 2 : 1));
}

void SketchWorkspace::Flush() {
  for (size_t limit = BufferLimit(); num_buffered() >= limit; limit = BufferLimit())
    MergeBuffered(limit);
}

// Sorts the first n buffered items, merges them into the levels, and compacts levels if needed.
void SketchWorkspace::MergeBuffered(size_t n) {
  const float* items = buffer_.data() + num_merged_;
  num_merged_ += n;
  if (options_.weighted) {
    AddWeighted(items, n);
  } else {
    keys_.resize(n);
    for (size_t i = 0; i < n; ++i) keys_[i] = ToSortKey(items[i]);
    RadixSort(&keys_, &key_scratch_);
    batch_.resize(n);
    for (size_t i = 0; i < n; ++i) batch_[i] = FromSortKey(keys_[i]);
    UpdateExtremes(batch_.front(), batch_.back());
    AddSorted(kSketchUnit, batch_);
  }
  CompactIfNeeded();
}

int64_t SketchWorkspace::NumSorted() const {
  int64_t stored = 0;
  for (int h = first_; h <= last_; ++h) stored += static_cast<int64_t>(level_[h].size());
  return stored;
}

void SketchWorkspace::IncludeLevel(int h) {
  first_ = std::min(first_, h);
  last_ = std::max(last_, h);
}

void SketchWorkspace::AddSorted(int h, const std::vector<float>& values) {
  if (!values.empty()) IncludeLevel(h);
  MergeInto(&level_[h], values, &scratch_);
}

int SketchWorkspace::LowestLevel() const {
  if (!options_.weighted) return kSketchUnit;
  int h = first_;
  while (h < last_ && level_[h].empty()) ++h;
  return std::min(h, kSketchLevels - 1);
}

int SketchWorkspace::Stage() const {
  double weight = 0;
  for (int h = first_; h <= last_; ++h) {
    weight += static_cast<double>(level_[h].size()) * static_cast<double>(uint64_t{1} << h);
  }
  return schedule_.Stage(weight / static_cast<double>(uint64_t{1} << LowestLevel()));
}

void SketchWorkspace::UpdateExtremes(float min, float max) {
  feature_->levels->min = std::min(feature_->levels->min, min);
  feature_->levels->max = std::max(feature_->levels->max, max);
}

void SketchWorkspace::AddWeighted(const float* items, size_t n) {
  std::vector<std::pair<float, float>> entries(n / 2);
  for (size_t i = 0; i < entries.size(); ++i) entries[i] = {items[2 * i], items[2 * i + 1]};
  std::sort(entries.begin(), entries.end());
  UpdateExtremes(entries.front().first, entries.back().first);
  std::vector<std::vector<float>> digits(kSketchLevels);
  for (const auto& [value, weight] : entries) {
    int exponent;
    std::frexp(weight, &exponent);  // weight < 2^exponent
    const int lowest = std::max(exponent - kWeightBits, -kSketchUnit);
    const double scaled = std::ldexp(static_cast<double>(weight), -lowest);
    uint64_t whole = static_cast<uint64_t>(scaled);
    if (const double rest = scaled - static_cast<double>(whole); rest > 0) {
      const double uniform = std::ldexp(static_cast<double>(Random(value, weight) >> 11), -53);
      whole += uniform < rest;
      feature_->levels->late_variance += std::ldexp(0.25, 2 * lowest);
    }
    for (int bit = 0; whole != 0; ++bit, whole >>= 1) {
      if (whole & 1) digits[kSketchUnit + lowest + bit].push_back(value);
    }
  }
  for (int h = 0; h < kSketchLevels; ++h) AddSorted(h, digits[h]);
}

// A random number that is a hash of the feature, of its number of coin flips so far, and of a and
// b.
uint64_t SketchWorkspace::Random(float a, float b) {
  const uint64_t values = static_cast<uint64_t>(ToSortKey(a)) << 32 | ToSortKey(b);
  const int64_t coin = feature_->levels->coin_flips;
  SaturatingAdd(&feature_->levels->coin_flips, 1);
  return Mix64(HashPair(feature_->id, coin) ^ Mix64(values));
}

void SketchWorkspace::CompactIfNeeded() {
  PromoteEqualPairs();
  const int stage = Stage(), lowest = LowestLevel();
  if (NumSorted() <= schedule_.CompactionTarget(stage)) return;
  const SketchLevels& levels = *feature_->levels;
  if (levels.compactions == 0 && CountDistinct() <= options_.exact_values) return;
  while (NumSorted() > schedule_.CompactionTarget(stage)) {
    int h = lowest;
    while (h < kSketchLevels - 1 &&
           static_cast<int64_t>(level_[h].size()) < schedule_.Capacity(stage, h - lowest)) {
      ++h;
    }
    if (h == kSketchLevels - 1) return;  // the levels above are bounded by the total weight
    Compact(h, stage);
  }
}

// Replaces pairs of equal values of a level by one value of the next level.
void SketchWorkspace::PromoteEqualPairs() {
  for (int h = first_; h <= std::min(last_, kSketchLevels - 2); ++h) {
    if (HasEqualNeighbors(level_[h])) PromoteEqualPairs(h);
  }
}

void SketchWorkspace::PromoteEqualPairs(int h) {
  std::vector<float>& level = level_[h];
  batch_.clear();
  size_t kept = 0;
  for (size_t i = 0; i < level.size();) {
    if (i + 1 < level.size() && level[i] == level[i + 1]) {
      batch_.push_back(level[i]);
      i += 2;
    } else {
      level[kept++] = level[i++];
    }
  }
  level.resize(kept);
  AddSorted(h + 1, batch_);
}

// Moves every other value to the next level. The last value of an odd number stays.
void SketchWorkspace::Compact(int h, int stage) {
  std::vector<float>& level = level_[h];
  if (HasEqualNeighbors(level)) return PromoteEqualPairs(h);
  const size_t pairs = level.size() / 2;
  const size_t coin = Random(level[0] + level[level.size() / 3], level[pairs]) >> 63;
  batch_.resize(pairs);
  for (size_t i = 0; i < pairs; ++i) batch_[i] = level[2 * i + coin];
  level.erase(level.begin(), level.begin() + static_cast<int64_t>(2 * pairs));
  AddSorted(h + 1, batch_);
  const double weight = SketchLevelWeight(h);
  SketchLevels& levels = *feature_->levels;
  SaturatingAdd(&levels.compactions, 1);
  if (stage < SketchSchedule::kSummedStages) {
    levels.early_sum += weight;
    levels.early_variance += weight * weight;
  } else {
    levels.late_variance += weight * weight;
  }
}

int64_t SketchWorkspace::CountDistinct() {
  keys_.clear();
  for (int h = first_; h <= last_; ++h) {
    for (const float value : level_[h]) keys_.push_back(ToSortKey(value));
  }
  RadixSort(&keys_, &key_scratch_);
  return std::unique(keys_.begin(), keys_.end()) - keys_.begin();
}

}  // namespace twml
