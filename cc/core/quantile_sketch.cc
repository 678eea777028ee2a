#include "cc/core/quantile_sketch.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "cc/core/first_position.h"

namespace twml {
namespace {

constexpr int kLevels = 64;
constexpr int kUnit = 32;  // the level of weight 1
constexpr double kMaxWeight = 2147483648.0;
constexpr int kWeightBits = 16;  // significant ones
constexpr double kVersion = 1;
constexpr int64_t kFeaturesPerChunk = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

double LevelWeight(int level) { return std::ldexp(1.0, level - kUnit); }

// Floats as integers in the same order, -0 beside 0 (Append makes it 0), NaN excluded.
uint32_t ToKey(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

float FromKey(uint32_t key) {
  const uint32_t bits = key ^ (key >> 31 ? 0x80000000u : 0xffffffffu);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// By digits of kBits, the least first.
template <int kBits>
void RadixSort(std::vector<uint32_t>* keys, std::vector<uint32_t>* other) {
  constexpr int kDigits = (32 + kBits - 1) / kBits;
  constexpr uint32_t kMask = (1 << kBits) - 1;
  const size_t n = keys->size();
  uint32_t count[kDigits][1 << kBits] = {};
  for (const uint32_t key : *keys) {
    for (int d = 0; d < kDigits; ++d) ++count[d][(key >> (d * kBits)) & kMask];
  }
  other->resize(n);
  for (int d = 0; d < kDigits; ++d) {
    const int shift = d * kBits;
    if (count[d][((*keys)[0] >> shift) & kMask] == n) continue;  // all have the same digit
    uint32_t sum = 0;
    for (uint32_t& c : count[d]) sum += std::exchange(c, sum);
    for (const uint32_t key : *keys) (*other)[count[d][(key >> shift) & kMask]++] = key;
    keys->swap(*other);
  }
}

void SortKeys(std::vector<uint32_t>* keys, std::vector<uint32_t>* other) {
  constexpr size_t kSmall = 48, kLarge = 1024;
  if (keys->size() < kSmall) return std::sort(keys->begin(), keys->end());
  if (keys->size() < kLarge) return RadixSort<8>(keys, other);
  RadixSort<11>(keys, other);
}

// Merges sorted b into sorted a, without a branch to mispredict.
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

bool HasEqualNeighbours(const std::vector<float>& sorted) {
  uint32_t equal = 0;  // as wide as a float, so that it becomes one vector operation
  for (size_t i = 1; i < sorted.size(); ++i) equal += sorted[i] == sorted[i - 1];
  return equal > 0;
}

}  // namespace

// How much the levels of a feature hold, by its total weight in units of its lowest level.
//
// While few levels are in use, the errors are bounded by their plain sum: level h contributes at
// most 1 / capacity(h) of the weight that passes it, and the capacities make that epsilon. From
// the third level on their variance is what counts. tests/cc walks through the schedule.
class QuantileSketch::Schedule {
 public:
  static constexpr double kShrink = 2.0 / 3;
  static constexpr int kEarly = 3;  // stages whose errors are summed up plainly
  static constexpr double kTopTimesEpsilon[kEarly + 1] = {1, 1.55, 3.8, 4};
  static constexpr int64_t kLeast = 8;
  static constexpr int kStages = kLevels;

  explicit Schedule(double epsilon) {
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

constexpr double QuantileSketch::Schedule::kTopTimesEpsilon[];

struct Run {
  int32_t level;
  int32_t size;
};

struct QuantileSketch::Levels {
  std::vector<Run> runs;            // ascending levels, none empty
  int64_t coins = 0, halvings = 0;  // thrown at all, thrown to make room
  double early_sum = 0, early_variance = 0, late_variance = 0;
  float min = kInfinity, max = -kInfinity;
};

// A cache line, so that an update touches one here and one in the items.
struct alignas(64) QuantileSketch::Feature {
  float* items = nullptr;  // the runs' values, then what is not sorted in yet
  uint32_t size = 0, capacity = 0;
  uint32_t stored = 0;  // items of the runs
  uint32_t limit = 0;   // items not sorted in that make it worth to do so
  double weight = 0, missing = 0;
  int64_t id = 0;
  std::unique_ptr<Levels> levels;  // none before the first Flush

  ~Feature() { std::free(items); }
  uint32_t waiting() const { return size - stored; }

  void Reserve(uint32_t wanted) {
    if (wanted <= capacity) return;
    constexpr uint32_t kLeast = 4;
    Resize(std::max({wanted, capacity + capacity / 4, kLeast}));
  }
  void Shrink(uint32_t most) {
    if (capacity > most + most / 4) Resize(most);
  }
  void Resize(uint32_t wanted) {
    void* resized = std::realloc(items, wanted * sizeof(float));
    if (resized == nullptr) throw std::bad_alloc();
    items = static_cast<float*>(resized);
    capacity = wanted;
  }
};

struct QuantileSketch::Entry {
  float value;
  double weight;
};

// The levels of one feature spread out, and what it takes to work on them; reused from feature to
// feature.
class QuantileSketch::Workspace {
 public:
  explicit Workspace(const QuantileSketch& sketch) : sketch_(sketch) {}

  void Load(Feature* feature) {
    feature_ = feature;
    if (feature->levels == nullptr) feature->levels = std::make_unique<Levels>();
    for (int h = first_; h <= last_; ++h) level_[h].clear();
    first_ = kLevels;
    last_ = -1;
    const float* at = feature->items;
    for (const Run& run : feature->levels->runs) {
      level_[run.level].assign(at, at + run.size);
      Occupy(run.level);
      at += run.size;
    }
    waiting_.assign(feature->items + feature->stored, feature->items + feature->size);
    sorted_in_ = 0;
  }

  void Store() {
    Levels& levels = *feature_->levels;
    levels.runs.clear();
    feature_->size = 0;
    feature_->Reserve(static_cast<uint32_t>(Stored() + static_cast<int64_t>(waiting())));
    for (int h = first_; h <= last_; ++h) {
      if (level_[h].empty()) continue;
      levels.runs.push_back({h, static_cast<int32_t>(level_[h].size())});
      std::copy(level_[h].begin(), level_[h].end(), feature_->items + feature_->size);
      feature_->size += static_cast<uint32_t>(level_[h].size());
    }
    feature_->stored = feature_->size;
    std::copy_n(waiting_.data() + sorted_in_, waiting(), feature_->items + feature_->size);
    feature_->size += static_cast<uint32_t>(waiting());
    feature_->limit = Limit();
    feature_->Shrink(feature_->size + feature_->limit);
  }

  size_t waiting() const { return waiting_.size() - sorted_in_; }

  // Adds the runs of another feature; its waiting items are the caller's to append.
  void Add(const Feature& other) {
    const float* at = other.items;
    for (const Run& run : other.levels->runs) {
      batch_.assign(at, at + run.size);
      AddSorted(run.level, batch_);
      at += run.size;
    }
    Levels& levels = *feature_->levels;
    levels.coins += other.levels->coins;
    levels.halvings += other.levels->halvings;
    levels.early_sum += other.levels->early_sum;
    levels.early_variance += other.levels->early_variance;
    levels.late_variance += other.levels->late_variance;
    Extend(other.levels->min, other.levels->max);
    MakeRoom();
  }

  uint32_t Limit() const {
    constexpr int64_t kLeast = 32;
    const int64_t stored = Stored(), room = sketch_.schedule_->Room(Stage());
    // A small feature is sorted in early, so that its repeated values take no room.
    const int64_t most = std::max({room - stored, room / 8, int64_t{1}});
    return static_cast<uint32_t>(std::min(most, std::max(kLeast, stored)) * sketch_.entry_items());
  }

  // Sorts in what waits, in steps that do not depend on how it came.
  void Settle() {
    for (size_t limit = Limit(); waiting() >= limit; limit = Limit()) SortIn(limit);
  }

 private:
  // Sorts the first n waiting items in, and makes room.
  void SortIn(size_t n) {
    const float* items = waiting_.data() + sorted_in_;
    sorted_in_ += n;
    if (sketch_.options_.weighted) {
      AddWeighted(items, n);
    } else {
      keys_.resize(n);
      for (size_t i = 0; i < n; ++i) keys_[i] = ToKey(items[i]);
      SortKeys(&keys_, &other_keys_);
      batch_.resize(n);
      for (size_t i = 0; i < n; ++i) batch_[i] = FromKey(keys_[i]);
      Extend(batch_.front(), batch_.back());
      AddSorted(kUnit, batch_);
    }
    MakeRoom();
  }

  int64_t Stored() const {
    int64_t stored = 0;
    for (int h = first_; h <= last_; ++h) stored += static_cast<int64_t>(level_[h].size());
    return stored;
  }

  // Levels outside [first_, last_] are empty.
  void Occupy(int h) {
    first_ = std::min(first_, h);
    last_ = std::max(last_, h);
  }
  void AddSorted(int h, const std::vector<float>& values) {
    if (!values.empty()) Occupy(h);
    MergeInto(&level_[h], values, &scratch_);
  }

  int Lowest() const {
    if (!sketch_.options_.weighted) return kUnit;
    int h = first_;
    while (h < last_ && level_[h].empty()) ++h;
    return std::min(h, kLevels - 1);
  }

  int Stage() const {
    double weight = 0;
    for (int h = first_; h <= last_; ++h) {
      weight += static_cast<double>(level_[h].size()) * static_cast<double>(uint64_t{1} << h);
    }
    return sketch_.schedule_->Stage(weight / static_cast<double>(uint64_t{1} << Lowest()));
  }

  void Extend(float min, float max) {
    feature_->levels->min = std::min(feature_->levels->min, min);
    feature_->levels->max = std::max(feature_->levels->max, max);
  }

  void AddWeighted(const float* items, size_t n) {
    std::vector<std::pair<float, float>> entries(n / 2);
    for (size_t i = 0; i < entries.size(); ++i) entries[i] = {items[2 * i], items[2 * i + 1]};
    std::sort(entries.begin(), entries.end());
    Extend(entries.front().first, entries.back().first);
    std::vector<std::vector<float>> digits(kLevels);
    for (const auto& [value, weight] : entries) {
      int exponent;
      std::frexp(weight, &exponent);  // weight < 2^exponent
      const int lowest = std::max(exponent - kWeightBits, -kUnit);
      const double scaled = std::ldexp(static_cast<double>(weight), -lowest);
      uint64_t whole = static_cast<uint64_t>(scaled);
      if (const double rest = scaled - static_cast<double>(whole); rest > 0) {
        const double uniform = std::ldexp(static_cast<double>(Random(value, weight) >> 11), -53);
        whole += uniform < rest;
        feature_->levels->late_variance += std::ldexp(0.25, 2 * lowest);
      }
      for (int bit = 0; whole != 0; ++bit, whole >>= 1) {
        if (whole & 1) digits[kUnit + lowest + bit].push_back(value);
      }
    }
    for (int h = 0; h < kLevels; ++h) AddSorted(h, digits[h]);
  }

  // A throw that depends on the feature, on how many came before, and on what it is thrown for.
  uint64_t Random(float a, float b) {
    const uint64_t values = static_cast<uint64_t>(ToKey(a)) << 32 | ToKey(b);
    return Mix64(HashPair(feature_->id, feature_->levels->coins++) ^ Mix64(values));
  }

  void MakeRoom() {
    PairEqual();
    const Schedule& schedule = *sketch_.schedule_;
    const int stage = Stage(), lowest = Lowest();
    if (Stored() <= schedule.Old(stage)) return;
    const Levels& levels = *feature_->levels;
    if (levels.halvings == 0 && Distinct() <= sketch_.options_.exact_values) return;
    while (Stored() > schedule.Old(stage)) {
      int h = lowest;
      while (h < kLevels - 1 &&
             static_cast<int64_t>(level_[h].size()) < schedule.Capacity(stage, h - lowest)) {
        ++h;
      }
      if (h == kLevels - 1) return;  // what is above the stage: bounded by its weight
      Halve(h, stage);
    }
  }

  // Two equal values of a level are one of the next.
  void PairEqual() {
    for (int h = first_; h <= std::min(last_, kLevels - 2); ++h) {
      if (HasEqualNeighbours(level_[h])) PairEqual(h);
    }
  }

  void PairEqual(int h) {
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

  // Every other value moves up; the last one of an odd number stays.
  void Halve(int h, int stage) {
    std::vector<float>& level = level_[h];
    if (HasEqualNeighbours(level)) return PairEqual(h);
    const size_t pairs = level.size() / 2;
    const size_t coin = Random(level[0] + level[level.size() / 3], level[pairs]) >> 63;
    batch_.resize(pairs);
    for (size_t i = 0; i < pairs; ++i) batch_[i] = level[2 * i + coin];
    level.erase(level.begin(), level.begin() + static_cast<int64_t>(2 * pairs));
    AddSorted(h + 1, batch_);
    const double weight = LevelWeight(h);
    Levels& levels = *feature_->levels;
    ++levels.halvings;
    if (stage < Schedule::kEarly) {
      levels.early_sum += weight;
      levels.early_variance += weight * weight;
    } else {
      levels.late_variance += weight * weight;
    }
  }

  int64_t Distinct() {
    keys_.clear();
    for (int h = first_; h <= last_; ++h) {
      for (const float value : level_[h]) keys_.push_back(ToKey(value));
    }
    SortKeys(&keys_, &other_keys_);
    return std::unique(keys_.begin(), keys_.end()) - keys_.begin();
  }

  const QuantileSketch& sketch_;
  Feature* feature_ = nullptr;
  std::vector<float> level_[kLevels], waiting_, batch_, scratch_;
  int first_ = 0, last_ = kLevels - 1;
  size_t sorted_in_ = 0;  // of the waiting items
  std::vector<uint32_t> keys_, other_keys_;
};

QuantileSketch::QuantileSketch(const QuantileSketchOptions& options)
    : options_(options), schedule_(std::make_unique<Schedule>(options.epsilon)) {
  first_limit_ = Workspace(*this).Limit();
}
QuantileSketch::~QuantileSketch() = default;

Status QuantileSketch::Make(const QuantileSketchOptions& options,
                            std::unique_ptr<QuantileSketch>* out) {
  constexpr double kLeastEpsilon = 1e-5, kMostEpsilon = 0.5;
  constexpr int64_t kMostExact = 1 << 20;
  if (!(options.epsilon >= kLeastEpsilon && options.epsilon <= kMostEpsilon)) {
    return Invalid("epsilon must be in [", kLeastEpsilon, ", ", kMostEpsilon, "], got ",
                   options.epsilon);
  }
  if (options.exact_values < 0 || options.exact_values > kMostExact) {
    return Invalid("exact_values must be in [0, ", kMostExact, "], got ", options.exact_values);
  }
  out->reset(new QuantileSketch(options));
  return Status();
}

QuantileSketch::Feature& QuantileSketch::feature(int64_t f) const {
  return chunks_[f / kFeaturesPerChunk][f % kFeaturesPerChunk];
}

int64_t QuantileSketch::FindOrAdd(int64_t id) {
  const int64_t f = index_.FindOrAdd(id);
  if (f < static_cast<int64_t>(chunks_.size()) * kFeaturesPerChunk && feature(f).limit != 0) {
    return f;
  }
  if (f == static_cast<int64_t>(chunks_.size()) * kFeaturesPerChunk) {
    chunks_.push_back(std::make_unique<Feature[]>(kFeaturesPerChunk));
  }
  feature(f).id = id;
  feature(f).limit = first_limit_;
  return f;
}

int64_t QuantileSketch::bytes() const {
  int64_t total = index_.bytes();
  total += static_cast<int64_t>(chunks_.size() * kFeaturesPerChunk * sizeof(Feature));
  for (int64_t f = 0; f < num_features(); ++f) {
    total += feature(f).capacity * static_cast<int64_t>(sizeof(float));
    if (feature(f).levels == nullptr) continue;
    total +=
        static_cast<int64_t>(sizeof(Levels) + feature(f).levels->runs.capacity() * sizeof(Run));
  }
  return total;
}

__attribute__((always_inline)) inline void QuantileSketch::Append(Feature* feature, float value,
                                                                  float weight,
                                                                  std::vector<int64_t>* full,
                                                                  int64_t f) {
  if (std::isnan(value)) {
    feature->missing += weight;
    return;
  }
  feature->weight += weight;
  if (weight == 0) return;
  const uint32_t entry = static_cast<uint32_t>(entry_items());
  feature->Reserve(feature->size + entry);
  feature->items[feature->size] = value + 0.0f;  // -0 becomes 0
  if (entry == 2) feature->items[feature->size + 1] = weight;
  feature->size += entry;
  const uint32_t waiting = feature->waiting();
  if (waiting >= feature->limit && waiting - entry < feature->limit) full->push_back(f);
}

Status QuantileSketch::Update(Span<const int64_t> ids, Span<const float> values,
                              Span<const float> weights, const ParallelFor& parallel_for) {
  const int64_t n = ids.size();
  if (values.size() != n) {
    return Invalid("values must have ", n, " items, one for each id, got ", values.size());
  }
  const bool has_weights = weights.data() != nullptr;
  if (has_weights && weights.size() != n) {
    return Invalid("weights must have ", n, " items, one for each id, got ", weights.size());
  }
  if (has_weights && !options_.weighted) {
    return Invalid("weights must not be given to a sketch made with weighted=False");
  }
  for (int64_t k = 0; has_weights && k < n; ++k) {
    if (!(weights[k] >= 0 && weights[k] <= kMaxWeight)) {
      return Invalid("weights[", k, "] = ", weights[k], " is not in [0, 2^31]");
    }
  }
  // Blocks whose cache misses overlap; pieces after which full features are sorted, by many
  // threads. Neither changes what a feature becomes.
  constexpr int64_t kBlock = 64, kPiece = 1 << 16;
  int64_t f[kBlock];
  std::vector<int64_t> full;
  for (int64_t piece = 0; piece < n; piece += kPiece) {
    const int64_t piece_end = std::min(n, piece + kPiece);
    for (int64_t begin = piece; begin < piece_end; begin += kBlock) {
      const int64_t size = std::min(kBlock, piece_end - begin);
      for (int64_t i = 0; i < size; ++i) index_.Prefetch(ids[begin + i]);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t known = index_.Find(ids[begin + i]);
        f[i] = known >= 0 ? known : FindOrAdd(ids[begin + i]);
        __builtin_prefetch(&feature(f[i]), 1);
      }
      for (int64_t i = 0; i < size; ++i) {
        const Feature& at = feature(f[i]);
        __builtin_prefetch(at.items + at.size, 1);
      }
      for (int64_t i = 0; i < size; ++i) {
        const int64_t k = begin + i;
        Append(&feature(f[i]), values[k], has_weights ? weights[k] : 1.0f, &full, f[i]);
      }
    }
    Settle(full, parallel_for);
    full.clear();
  }
  return Status();
}

void QuantileSketch::Settle(const std::vector<int64_t>& features, const ParallelFor& parallel_for) {
  constexpr int64_t kCost = 20'000;
  parallel_for(static_cast<int64_t>(features.size()), kCost, [&](int64_t begin, int64_t end) {
    Workspace work(*this);
    for (int64_t i = begin; i < end; ++i) {
      work.Load(&feature(features[i]));
      work.Settle();
      work.Store();
    }
  });
}

Status QuantileSketch::Merge(const QuantileSketch& other, const ParallelFor& parallel_for) {
  if (other.options_.epsilon != options_.epsilon ||
      other.options_.exact_values != options_.exact_values ||
      other.options_.weighted != options_.weighted) {
    return Invalid("other must have the epsilon ", options_.epsilon, ", exact_values ",
                   options_.exact_values, " and weighted ", options_.weighted, ", got ",
                   other.options_.epsilon, ", ", other.options_.exact_values, " and ",
                   other.options_.weighted);
  }
  if (&other == this) return Invalid("other must be another sketch, got the same");
  const std::vector<int64_t> order = other.AscendingOrder();
  const int64_t n = other.num_features();
  std::vector<int64_t> mine(n);
  for (int64_t i = 0; i < n; ++i) mine[i] = FindOrAdd(other.feature(order[i]).id);
  constexpr int64_t kCost = 20'000;
  parallel_for(n, kCost, [&](int64_t begin, int64_t end) {
    Workspace work(*this);
    std::vector<int64_t> full;
    for (int64_t i = begin; i < end; ++i) {
      const Feature& from = other.feature(order[i]);
      Feature& to = feature(mine[i]);
      const double weight = to.weight + from.weight, missing = to.missing + from.missing;
      if (from.levels != nullptr) {
        work.Load(&to);
        work.Add(from);
        work.Store();
      }
      const uint32_t entry = static_cast<uint32_t>(entry_items());
      for (uint32_t at = from.stored; at < from.size; at += entry) {
        Append(&to, from.items[at], entry == 2 ? from.items[at + 1] : 1.0f, &full, mine[i]);
      }
      to.weight = weight;
      to.missing = missing;
      if (to.waiting() >= to.limit) {
        work.Load(&to);
        work.Settle();
        work.Store();
      }
    }
  });
  return Status();
}

std::vector<int64_t> QuantileSketch::AscendingOrder() const {
  std::vector<int64_t> order(num_features());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [this](int64_t a, int64_t b) { return feature(a).id < feature(b).id; });
  return order;
}

std::vector<int64_t> QuantileSketch::FeatureIds() const {
  std::vector<int64_t> ids = AscendingOrder();
  for (int64_t& id : ids) id = feature(id).id;
  return ids;
}

// Ascending, equal values as one, with weights summed up to and with each.
void QuantileSketch::Sorted(const Feature& feature, std::vector<Entry>* entries) const {
  entries->clear();
  const float* at = feature.items;
  if (feature.levels != nullptr) {
    for (const Run& run : feature.levels->runs) {
      for (int32_t i = 0; i < run.size; ++i) entries->push_back({*at++, LevelWeight(run.level)});
    }
  }
  const uint32_t entry = static_cast<uint32_t>(entry_items());
  for (uint32_t i = feature.stored; i < feature.size; i += entry) {
    const double weight = entry == 2 ? static_cast<double>(feature.items[i + 1]) : 1.0;
    entries->push_back({feature.items[i], weight});
  }
  std::sort(entries->begin(), entries->end(),
            [](const Entry& a, const Entry& b) { return a.value < b.value; });
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
      return Invalid("probabilities[", i, "] = ", probabilities[i], " is not in [0, 1]");
    }
  }
  constexpr int64_t kCost = 20'000;
  parallel_for(ids.size(), kCost, [&](int64_t begin, int64_t end) {
    std::vector<Entry> entries;
    for (int64_t q = begin; q < end; ++q) {
      float* row = out + q * probabilities.size();
      std::fill_n(row, probabilities.size(), std::numeric_limits<float>::quiet_NaN());
      const int64_t f = index_.Find(ids[q]);
      if (f < 0) continue;
      Sorted(feature(f), &entries);
      if (entries.empty()) continue;
      float min = entries.front().value, max = entries.back().value;
      if (const Levels* levels = feature(f).levels.get()) {
        min = std::min(min, levels->min);
        max = std::max(max, levels->max);
      }
      for (int64_t i = 0; i < probabilities.size(); ++i) {
        const double wanted = probabilities[i] * entries.back().weight;
        const auto at = std::partition_point(entries.begin(), entries.end(),
                                             [&](const Entry& e) { return e.weight < wanted; });
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
    std::vector<Entry> entries;
    int64_t sorted = -1;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t f = index_.Find(ids[k]);
      out[k] = 0;
      if (f < 0) continue;
      if (f != sorted) Sorted(feature(f), &entries);  // neighbours mostly ask for the same
      sorted = f;
      const auto at = std::partition_point(entries.begin(), entries.end(),
                                           [&](const Entry& e) { return e.value <= values[k]; });
      if (at != entries.begin()) out[k] = (at - 1)->weight;
    }
  });
  return Status();
}

void QuantileSketch::Describe(Span<const int64_t> ids, double* out) const {
  for (int64_t q = 0; q < ids.size(); ++q) {
    double* row = out + q * kDescribed;
    std::fill_n(row, kDescribed, 0.0);
    const int64_t f = index_.Find(ids[q]);
    if (f < 0) continue;
    const Feature& at = feature(f);
    row[0] = at.weight;
    row[1] = at.missing;
    if (const Levels* levels = at.levels.get()) {
      const double tail = 2 * std::log(2 / kFailure);
      row[2] = std::min(levels->early_sum + std::sqrt(tail * levels->late_variance),
                        std::sqrt(tail * (levels->early_variance + levels->late_variance)));
    }
    row[3] = at.size;
  }
}

Status QuantileSketch::Boundaries(Span<const int64_t> ids, Span<const int64_t> bins, bool right,
                                  const ParallelFor& parallel_for, QuantileBoundaries* out) const {
  if (bins.size() != ids.size()) {
    return Invalid("bins must have ", ids.size(), " items, one for each id, got ", bins.size());
  }
  for (int64_t q = 0; q < bins.size(); ++q) {
    if (bins[q] < 1) return Invalid("bins[", q, "] = ", bins[q], " is not positive");
  }
  std::vector<std::vector<float>> cuts(ids.size());
  constexpr int64_t kCost = 20'000;
  parallel_for(ids.size(), kCost, [&](int64_t begin, int64_t end) {
    std::vector<Entry> entries;
    for (int64_t q = begin; q < end; ++q) {
      const int64_t f = index_.Find(ids[q]);
      if (f < 0) continue;
      Sorted(feature(f), &entries);
      const int64_t n = static_cast<int64_t>(entries.size());
      const double wanted = static_cast<double>(bins[q]);
      double passed = 0;  // how many of the quantiles lie at or before the value
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
  std::vector<Entry> entries;
  Sorted(feature(f), &entries);
  double before = 0;
  for (const Entry& e : entries) {
    values->push_back(e.value);
    weights->push_back(e.weight - before);
    before = e.weight;
  }
}

QuantileSketch::StateSizes QuantileSketch::Sizes() const {
  StateSizes sizes{num_features(), 0, 0};
  for (int64_t f = 0; f < num_features(); ++f) {
    sizes.items += feature(f).size;
    if (feature(f).levels) sizes.runs += static_cast<int64_t>(feature(f).levels->runs.size());
  }
  return sizes;
}

void QuantileSketch::Write(const QuantileSketchOut& out) const {
  out.config[0] = kVersion;
  out.config[1] = options_.epsilon;
  out.config[2] = static_cast<double>(options_.exact_values);
  out.config[3] = options_.weighted;
  int64_t at = 0;
  int32_t* run_out = out.runs.data();
  float* item_out = out.items.data();
  const Levels none;
  for (const int64_t f : AscendingOrder()) {
    const Feature& from = feature(f);
    const Levels& levels = from.levels ? *from.levels : none;
    out.feature_ids[at] = from.id;
    const double totals[] = {from.weight,         from.missing,     levels.min,
                             levels.max,          levels.early_sum, levels.early_variance,
                             levels.late_variance};
    std::copy_n(totals, QuantileSketchOut::kTotals, &out.totals[at * QuantileSketchOut::kTotals]);
    const int64_t counters[] = {levels.coins, levels.halvings, from.waiting(),
                                static_cast<int64_t>(levels.runs.size())};
    std::copy_n(counters, QuantileSketchOut::kCounters,
                &out.counters[at * QuantileSketchOut::kCounters]);
    for (const Run& run : levels.runs) {
      *run_out++ = run.level;
      *run_out++ = run.size;
    }
    item_out = std::copy_n(from.items, from.size, item_out);
    ++at;
  }
}

Status QuantileSketch::FromState(const QuantileSketchState& state, const ParallelFor& parallel_for,
                                 std::unique_ptr<QuantileSketch>* out) {
  using S = QuantileSketchState;
  const int64_t n = state.feature_ids.size();
  if (state.config.size() != S::kConfig || state.config[0] != kVersion) {
    return Invalid("config must have ", S::kConfig, " items, the first ", kVersion);
  }
  if (state.totals.size() != n * S::kTotals || state.counters.size() != n * S::kCounters) {
    return Invalid("totals and counters must have ", n, " rows of ", S::kTotals, " and ",
                   S::kCounters, " items, got ", state.totals.size(), " and ",
                   state.counters.size(), " items");
  }
  QuantileSketchOptions options;
  options.epsilon = state.config[1];
  if (!(state.config[2] >= 0 && state.config[2] <= 1e9)) {
    return Invalid("config[2], exact_values, is out of range: ", state.config[2]);
  }
  options.exact_values = static_cast<int64_t>(state.config[2]);
  options.weighted = state.config[3] != 0;
  std::unique_ptr<QuantileSketch> made;
  TWML_RETURN_IF_ERROR(Make(options, &made));
  const int64_t entry = made->entry_items();
  const int64_t num_runs = state.runs.size() / S::kRun;
  int64_t run = 0, item = 0;
  std::vector<int64_t> full;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t id = state.feature_ids[i];
    if (i > 0 && id <= state.feature_ids[i - 1]) {
      return Invalid("feature_ids must ascend: feature_ids[", i, "] = ", id, " after ",
                     state.feature_ids[i - 1]);
    }
    const double* totals = &state.totals[i * S::kTotals];
    const int64_t* counters = &state.counters[i * S::kCounters];
    if (counters[0] < 0 || counters[1] < 0 || counters[2] < 0 || counters[2] > state.items.size() ||
        counters[2] % entry != 0 || counters[3] < 0 || counters[3] > num_runs - run) {
      return Invalid("counters of feature ", id, " are out of range");
    }
    for (int64_t j = 0; j < S::kTotals; ++j) {
      if (std::isnan(totals[j]) || (j != 2 && j != 3 && totals[j] < 0)) {
        return Invalid("totals of feature ", id, " are out of range");
      }
    }
    auto levels = std::make_unique<Levels>();
    int64_t stored = 0, last_level = -1;
    for (int64_t r = 0; r < counters[3]; ++r, ++run) {
      const int32_t level = state.runs[run * S::kRun], size = state.runs[run * S::kRun + 1];
      if (level <= last_level || level >= kLevels || (!options.weighted && level < kUnit) ||
          size < 1 || size > state.items.size() - item - stored) {
        return Invalid("runs[", run, "] = (", level, ", ", size, ") is out of range");
      }
      for (int64_t j = 0; j < size; ++j) {
        const float value = state.items[item + stored + j];
        if (std::isnan(value) || (j > 0 && value < state.items[item + stored + j - 1])) {
          return Invalid("items[", item + stored + j, "] = ", value, " is not in order");
        }
      }
      last_level = level;
      stored += size;
      levels->runs.push_back({level, size});
    }
    const int64_t size = stored + counters[2];
    if (size > state.items.size() - item || size > INT32_MAX) {
      return Invalid("items must have what counters and runs say, got ", state.items.size());
    }
    for (int64_t j = stored; j < size; ++j) {
      const float value = state.items[item + j];
      const bool weight = options.weighted && (j - stored) % 2 == 1;
      if (std::isnan(value) || (weight && !(value > 0 && value <= kMaxWeight))) {
        return Invalid("items[", item + j, "] = ", value, " is out of range");
      }
    }
    const int64_t f = made->FindOrAdd(id);
    Feature& to = made->feature(f);
    to.Reserve(static_cast<uint32_t>(size));
    std::copy_n(state.items.data() + item, size, to.items);
    to.size = static_cast<uint32_t>(size);
    to.stored = static_cast<uint32_t>(stored);
    to.weight = totals[0];
    to.missing = totals[1];
    if (counters[3] > 0 || counters[0] > 0 || totals[2] <= totals[3]) {
      levels->coins = counters[0];
      levels->halvings = counters[1];
      levels->min = static_cast<float>(totals[2]);
      levels->max = static_cast<float>(totals[3]);
      levels->early_sum = totals[4];
      levels->early_variance = totals[5];
      levels->late_variance = totals[6];
      to.levels = std::move(levels);
    }
    item += size;
    full.push_back(f);
  }
  if (run != num_runs || state.runs.size() % S::kRun != 0 || item != state.items.size()) {
    return Invalid("runs and items must have what counters say: ", run, " and ", item, ", got ",
                   num_runs, " and ", state.items.size());
  }
  made->Settle(full, parallel_for);  // sets the limits, which follow from the rest
  *out = std::move(made);
  return Status();
}

}  // namespace twml
