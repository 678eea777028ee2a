#include "cc/core/dynamic_lookup.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "cc/core/dynamic_lookup_evictions.h"
#include "cc/core/hash.h"
#include "cc/core/id_index.h"

namespace twml {
namespace {

constexpr int64_t kCostPerId = 40;
constexpr int64_t kAhead = 8;  // ids whose place in the index is prefetched
constexpr int64_t kMaxSightings = 255;

bool IsPowerOfTwo(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

Status CheckOptions(const DynamicLookupOptions& options) {
  if (options.min_count < 1 || options.min_count > kMaxSightings) {
    return Invalid("min_count must be in [1, ", kMaxSightings, "], got ", options.min_count);
  }
  if (options.pinned < 1) return Invalid("pinned must be at least 1, got ", options.pinned);
  if (options.max_age < 0) return Invalid("max_age must not be negative, got ", options.max_age);
  return Status();
}

template <class State>
Status CheckState(const State& state) {
  const int64_t capacity = state.keys.size();
  const auto same_size = [capacity](const char* name, int64_t size) {
    if (size == capacity) return Status();
    return Invalid(name, " must have ", capacity, " items, as keys, got ", size);
  };
  TWML_RETURN_IF_ERROR(CheckDynamicIndex(capacity, state.index.size()));
  TWML_RETURN_IF_ERROR(same_size("last_used", state.last_used.size()));
  TWML_RETURN_IF_ERROR(same_size("counts", state.counts.size()));
  const int64_t width = state.sketch.size() / kSketchDepth;
  if (state.sketch.size() % kSketchDepth != 0 || (width != 0 && !IsPowerOfTwo(width))) {
    return Invalid("sketch must have ", kSketchDepth, " rows of a power of two, got ",
                   state.sketch.size(), " items");
  }
  if (state.header.size() != kDynamicHeaderSize) {
    return Invalid("header must have ", kDynamicHeaderSize, " items, got ", state.header.size());
  }
  const int64_t lookups = state.header[0], used = state.header[1], sightings = state.header[2];
  const int64_t halved = state.header[3];
  if (lookups < 0 || lookups == INT64_MAX || used < 0 || used >= capacity || sightings < 0 ||
      halved < 0 || halved > lookups) {
    return Invalid("header must have counts of lookups, of rows in use below ", capacity,
                   " and of sightings, and an earlier lookup, got ", lookups, ", ", used, ", ",
                   sightings, ", ", halved);
  }
  return Status();
}

// The hash table of the rows. Items out of range, which only a damaged state has, are skipped.
template <class Int32>
class RowIndex {
 public:
  RowIndex(Span<Int32> index, Span<const int64_t> keys, int64_t seed)
      : index_(index), keys_(keys), mask_(static_cast<uint64_t>(index.size()) - 1), seed_(seed) {}

  uint64_t Home(int64_t id) const { return HashPair(seed_, id) & mask_; }
  void Prefetch(int64_t id) const { __builtin_prefetch(&index_[Home(id)]); }

  // The row of an id, or -1.
  int64_t Find(int64_t id) const {
    uint64_t at = Home(id);
    for (int64_t step = 0; step < index_.size(); ++step, at = (at + 1) & mask_) {
      const int64_t row = index_[at];
      if (row == -1) return -1;
      if (Valid(row) && keys_[row] == id) return row;
    }
    return -1;
  }

  void Insert(int64_t id, int64_t row) {
    uint64_t at = Home(id);
    for (int64_t step = 0; step < index_.size(); ++step, at = (at + 1) & mask_) {
      if (index_[at] != -1) continue;
      index_[at] = static_cast<int32_t>(row);
      return;
    }
  }

  // Removes the row of keys[row]. Later items of the same run move up.
  void Remove(int64_t row) {
    uint64_t hole = Home(keys_[row]);
    int64_t step = 0;
    while (index_[hole] != row) {
      if (index_[hole] == -1 || ++step == index_.size()) return;
      hole = (hole + 1) & mask_;
    }
    uint64_t at = hole;
    for (step = 1; step < index_.size(); ++step) {
      at = (at + 1) & mask_;
      const int64_t other = index_[at];
      if (other == -1) break;
      // An item may move to the hole unless its home lies behind the hole.
      const uint64_t home = Valid(other) ? Home(keys_[other]) : at;
      if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
      index_[hole] = static_cast<int32_t>(other);
      hole = at;
    }
    index_[hole] = -1;
  }

 private:
  bool Valid(int64_t row) const { return row >= 0 && row < keys_.size(); }

  Span<Int32> index_;
  Span<const int64_t> keys_;
  uint64_t mask_;
  int64_t seed_;
};

// Writes the row of each id or -1.
template <class Index>
void FindAll(Span<const int64_t> ids, const Index& index, const ParallelFor& parallel_for,
             int64_t* rows) {
  parallel_for(ids.size(), kCostPerId, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      if (k + kAhead < end) index.Prefetch(ids[k + kAhead]);
      rows[k] = index.Find(ids[k]);
    }
  });
}

// Adds sightings of an id and returns the smallest of its counters.
int64_t Sight(const MutableDynamicRows& state, int64_t seed, int64_t id, int64_t times) {
  const int64_t width = state.sketch.size() / kSketchDepth;
  int64_t smallest = kMaxSightings;
  for (int64_t d = 0; d < kSketchDepth; ++d) {
    const uint64_t row_seed = static_cast<uint64_t>(seed) + 1 + static_cast<uint64_t>(d);
    const uint64_t column =
        HashPair(static_cast<int64_t>(row_seed), id) & static_cast<uint64_t>(width - 1);
    uint8_t& counter = state.sketch[d * width + static_cast<int64_t>(column)];
    counter =
        static_cast<uint8_t>(std::min(counter + std::min(times, kMaxSightings), kMaxSightings));
    smallest = std::min<int64_t>(smallest, counter);
  }
  return smallest;
}

// Counts sightings, and halves the counters if it is time.
void AgeSketch(const MutableDynamicRows& state, int64_t added, int64_t min_count) {
  const int64_t width = state.sketch.size() / kSketchDepth, now = state.header[0];
  int64_t& sightings = state.header[2];
  sightings = std::min(sightings, width) + std::min(added, width);
  if (2 * sightings < width || now - state.header[3] < min_count) return;
  for (int64_t i = 0; i < state.sketch.size(); ++i) state.sketch[i] >>= 1;
  sightings = 0;
  state.header[3] = now;
}

// The latest use of a row that may be evicted.
int64_t NewestVictim(const MutableDynamicRows& state, const DynamicLookupOptions& options) {
  const int64_t kept = options.eviction == Eviction::kAge
                           ? std::max(options.pinned, options.max_age)
                           : options.pinned;
  return state.header[0] - kept;
}

}  // namespace

Status CheckDynamicIndex(int64_t num_keys, int64_t index_size) {
  if (num_keys < 2) return Invalid("keys must have at least 2 items, got ", num_keys);
  if (IsPowerOfTwo(index_size) && index_size / 2 >= num_keys) return Status();
  return Invalid("index must have a power of two of at least 2 * ", num_keys, " items, got ",
                 index_size);
}

void FindDynamicRowsSerially(Span<const int64_t> ids, Span<const int64_t> keys,
                             Span<const int32_t> index, int64_t seed, int64_t* rows) {
  FindAll(ids, RowIndex<const int32_t>(index, keys, seed), Serial, rows);
  for (int64_t k = 0; k < ids.size(); ++k) rows[k] = std::max<int64_t>(rows[k], 0);
}

Status FindDynamicRows(Span<const int64_t> ids, const ConstDynamicRows& state,
                       const DynamicLookupOptions& options, const ParallelFor& parallel_for,
                       int64_t* rows) {
  TWML_RETURN_IF_ERROR(CheckState(state));
  const RowIndex<const int32_t> index(state.index, state.keys, options.seed);
  FindAll(ids, index, parallel_for, rows);
  for (int64_t k = 0; k < ids.size(); ++k) rows[k] = std::max<int64_t>(rows[k], 0);
  return Status();
}

Status AssignDynamicRows(Span<const int64_t> ids, const MutableDynamicRows& state,
                         const DynamicLookupOptions& options, const ParallelFor& parallel_for,
                         int64_t* rows, std::vector<int64_t>* reset) {
  TWML_RETURN_IF_ERROR(CheckOptions(options));
  TWML_RETURN_IF_ERROR(CheckState(state));
  if (options.min_count > 1 && state.sketch.size() == 0) {
    return Invalid("sketch must not be empty if min_count is ", options.min_count);
  }
  const Span<const int64_t> keys(state.keys.data(), state.keys.size());
  RowIndex<int32_t> index(state.index, keys, options.seed);
  FindAll(ids, index, parallel_for, rows);

  // Ids without a row, in the order of their first occurrence, and all memory that is needed.
  IdIndex numbers;
  std::vector<int64_t> missing, times;
  for (int64_t k = 0; k < ids.size(); ++k) {
    if (rows[k] >= 0) continue;
    const int64_t number = numbers.FindOrAdd(ids[k]);
    if (number == static_cast<int64_t>(missing.size())) {
      missing.push_back(ids[k]);
      times.push_back(0);
    }
    ++times[number];
  }
  const auto number_missing = static_cast<int64_t>(missing.size());
  std::vector<int64_t> row_of(number_missing, 0), admitted;
  admitted.reserve(number_missing);
  std::vector<Victim> victims;
  // A full table has an order in which its rows are evicted.
  RowUses uses;
  uses.last_used = {state.last_used.data(), state.last_used.size()};
  if (options.eviction == Eviction::kLfu) uses.counts = {state.counts.data(), state.counts.size()};
  StateStamp stamp = {state.last_used.data(), keys.size(), state.header[0], state.header[1],
                      options.eviction == Eviction::kLfu};
  std::unique_ptr<EvictionOrder> order;
  if (options.eviction != Eviction::kNone && number_missing > keys.size() - 1 - state.header[1]) {
    order = TakeEvictionOrder(stamp, uses);
    if (order == nullptr) order = std::make_unique<EvictionOrder>(keys.size());
    victims.reserve(number_missing);
  } else if (state.header[1] == keys.size() - 1) {
    order = TakeEvictionOrder(stamp, uses);
  }
  reset->clear();
  reset->reserve(number_missing);

  const int64_t now = ++state.header[0];
  for (int64_t k = 0; k < ids.size(); ++k) {
    if (rows[k] < 0) continue;
    state.last_used[rows[k]] = now;
    int64_t& count = state.counts[rows[k]];
    if (count < INT64_MAX) ++count;
  }
  int64_t sightings = 0;
  for (int64_t i = 0; i < number_missing; ++i) {
    if (options.min_count > 1) {
      sightings += times[i];
      if (Sight(state, options.seed, missing[i], times[i]) < options.min_count) continue;
    }
    admitted.push_back(i);
  }
  if (sightings > 0) AgeSketch(state, sightings, options.min_count);

  int64_t& used = state.header[1];
  const int64_t free = keys.size() - 1 - used;
  const int64_t wanted = static_cast<int64_t>(admitted.size()) - free;
  const int64_t work = order == nullptr ? 0 : order->work();
  if (wanted > 0 && options.eviction != Eviction::kNone) {
    order->Take(uses, NewestVictim(state, options), wanted, &victims);
  }
  size_t next_victim = 0;
  for (const int64_t i : admitted) {
    int64_t row;
    if (used + 1 < keys.size()) {
      row = ++used;
    } else if (next_victim < victims.size()) {
      row = std::get<2>(victims[next_victim++]);
      index.Remove(row);
    } else {
      break;
    }
    state.keys[row] = missing[i];
    state.last_used[row] = now;
    state.counts[row] = times[i];
    if (order != nullptr) order->Add(uses, row);
    index.Insert(missing[i], row);
    row_of[i] = row;
    reset->push_back(row);
  }
  for (int64_t k = 0; k < ids.size(); ++k) {
    if (rows[k] < 0) rows[k] = row_of[numbers.Find(ids[k])];
  }
  if (order != nullptr) {
    if (options.work != nullptr) *options.work += order->work() - work;
    stamp.lookups = state.header[0];
    stamp.used = state.header[1];
    try {
      KeepEvictionOrder(stamp, std::move(order));
    } catch (const std::bad_alloc&) {  // the next lookup makes another one
    }
  }
  return Status();
}

}  // namespace twml
