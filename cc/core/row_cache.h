// Which rows of a large table are in a cache of few rows, and which leave it for others.
//
// The cache is set-associative: a hash assigns each id to a set of kWays places. If all places of
// its set are pinned, an id moves on to the next set; the sets that it passes count it, so lookups
// know how far to look (Bronson and Shi, 2019, "Open-sourcing F14"). Every number of pinned rows up
// to the size of the cache therefore fits.
//
// This file knows ids and places only, neither the content of rows nor where it comes from.
#ifndef TWML_CORE_ROW_CACHE_H_
#define TWML_CORE_ROW_CACHE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/keyed_hash.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// Which of the rows that are not pinned leaves a set. kLru: the one whose last use is the longest
// time ago. kLfu: the one that was used in the fewest lookups that count since it is in the cache;
// of several, the least recently used one. Of equal ones the first one leaves.
enum class RowPolicy { kLru, kLfu };

class RowCache {
 public:
  static constexpr int64_t kWays = 16;
  static constexpr int64_t kNoRow = -1;

  // A row that enters the cache, and the one that leaves its place; kNoRow if it was empty.
  struct Placed {
    int64_t id;
    int64_t place;
    int64_t old_id;
    bool old_is_dirty;
    uint64_t old_use;
  };

  // The cache has at least `num_places`: the next multiple of kWays. The hash is keyed, so that
  // chosen ids do not meet in few sets, which would make all functions slow.
  RowCache(int64_t num_places, RowPolicy policy, KeyedHash hash = KeyedHash());

  // The number of places of such a cache, and the memory that it takes.
  static int64_t PlacesFor(int64_t num_places) { return (num_places + kWays - 1) / kWays * kWays; }
  static int64_t MemoryBytes(int64_t num_places) {
    return PlacesFor(num_places) * (8 + 8 + 1) + PlacesFor(num_places) / kWays * 4;
  }

  int64_t num_places() const { return num_places_; }

  // The number of different rows of the current lookup.
  int64_t num_used() const { return pinned_; }

  // Begins a lookup. Rows that are found or placed from now on are pinned until the next one.
  // `counts` is whether kLfu counts it; an update is not counted beside the lookup before it.
  void Begin(bool counts);

  // Writes the place of each id, or kNoRow. Threads share the work.
  template <class Id>
  void Find(Span<const Id> ids, const ParallelFor& parallel_for, int64_t* places);

  // The place of an id or kNoRow, without using it.
  int64_t Peek(int64_t id) const;

  // Gives places to different ids that are not in the cache, in order. If there are too few places
  // nothing changes.
  Status Place(Span<const int64_t> ids, std::vector<Placed>* placed);

  // Puts back the row that left a place, or empties the place. The rows of one call of Place must
  // be undone from the last to the first.
  void Undo(const Placed& placed, bool restore);

  // The id at a place, or kNoRow.
  int64_t id_at(int64_t place) const { return ids_[place]; }
  bool dirty(int64_t place) const { return dirty_[place] != 0; }
  void set_dirty(int64_t place, bool dirty) { dirty_[place] = dirty ? 1 : 0; }

 private:
  // A use is the number of lookups (kLfu only) above the number of the last one.
  static constexpr int kTimeBits = 40;
  static constexpr uint64_t kTimeMask = (uint64_t{1} << kTimeBits) - 1;
  static constexpr uint64_t kMaxCount = (uint64_t{1} << (64 - kTimeBits)) - 1;

  int64_t SetOf(int64_t id) const;
  int64_t NextSet(int64_t set) const { return set + 1 == num_sets_ ? 0 : set + 1; }
  bool Pinned(int64_t place) const {
    return (uses_[place].load(std::memory_order_relaxed) & kTimeMask) == now_;
  }
  // Counts a use; returns whether it is the first one of this lookup.
  bool Use(int64_t place);
  // Adds `by` to the counts of the sets that an id at a place has passed.
  void CountPassing(int64_t id, int64_t place, int32_t by);

  const int64_t num_places_, num_sets_;
  const RowPolicy policy_;
  const KeyedHash hash_;
  uint64_t now_ = 1;
  bool counts_ = true;
  std::atomic<int64_t> pinned_{0};  // rows used by the current lookup
  std::vector<int64_t> ids_;
  std::unique_ptr<std::atomic<uint64_t>[]> uses_;
  std::vector<uint8_t> dirty_;
  std::vector<int32_t> passing_;  // of each set: ids that are in a later set
};

}  // namespace twml

#endif  // TWML_CORE_ROW_CACHE_H_
