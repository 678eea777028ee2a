#include "cc/core/row_cache.h"

#include <algorithm>

namespace twml {
namespace {

constexpr int64_t kCostPerId = 15;
constexpr int64_t kAhead = 8;  // ids whose set is prefetched

}  // namespace

RowCache::RowCache(int64_t num_places, RowPolicy policy, KeyedHash hash)
    : num_places_(PlacesFor(num_places)),
      num_sets_(num_places_ / kWays),
      policy_(policy),
      hash_(hash),
      ids_(num_places_, kNoRow),
      uses_(new std::atomic<uint64_t>[num_places_]()),
      dirty_(num_places_),
      passing_(num_sets_) {}

int64_t RowCache::SetOf(int64_t id) const {
  const unsigned __int128 product =
      static_cast<unsigned __int128>(hash_(id)) * static_cast<uint64_t>(num_sets_);
  return static_cast<int64_t>(product >> 64);
}

bool RowCache::Use(int64_t place) {
  std::atomic<uint64_t>& use = uses_[place];
  uint64_t old = use.load(std::memory_order_relaxed);
  while ((old & kTimeMask) != now_) {
    uint64_t count = old >> kTimeBits;
    if (counts_ && count < kMaxCount) ++count;
    if (use.compare_exchange_weak(old, count << kTimeBits | now_, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void RowCache::Begin(bool counts) {
  ++now_;
  counts_ = counts && policy_ == RowPolicy::kLfu;
  pinned_ = 0;
}

int64_t RowCache::Peek(int64_t id) const {
  int64_t set = SetOf(id);
  for (int64_t step = 0; step < num_sets_; ++step, set = NextSet(set)) {
    const int64_t* const ids = ids_.data() + set * kWays;
    for (int64_t w = 0; w < kWays; ++w) {
      if (ids[w] == id) return set * kWays + w;
    }
    if (passing_[set] == 0) break;
  }
  return kNoRow;
}

template <class Id>
void RowCache::Find(Span<const Id> ids, const ParallelFor& parallel_for, int64_t* places) {
  parallel_for(ids.size(), kCostPerId, [&](int64_t begin, int64_t end) {
    int64_t used = 0;
    for (int64_t k = begin; k < end; ++k) {
      if (k + kAhead < end) {
        const int64_t first = SetOf(ids[k + kAhead]) * kWays;
        __builtin_prefetch(&ids_[first]);
        __builtin_prefetch(&ids_[first + kWays / 2]);
      }
      const int64_t place = places[k] = Peek(ids[k]);
      if (place != kNoRow) used += Use(place) ? 1 : 0;
    }
    pinned_ += used;
  });
}
template void RowCache::Find<int32_t>(Span<const int32_t>, const ParallelFor&, int64_t*);
template void RowCache::Find<int64_t>(Span<const int64_t>, const ParallelFor&, int64_t*);

void RowCache::CountPassing(int64_t id, int64_t place, int32_t by) {
  const int64_t end = place / kWays;
  for (int64_t set = SetOf(id); set != end; set = NextSet(set)) passing_[set] += by;
}

Status RowCache::Place(Span<const int64_t> ids, std::vector<Placed>* placed) {
  placed->clear();
  const int64_t needed = pinned_ + ids.size();
  if (needed > num_places_) {
    return Invalid("the ", needed, " distinct ids of one lookup must fit into the cache: expected ",
                   "cache_rows of at least ", needed, ", got ", num_places_);
  }
  placed->reserve(ids.size());
  for (const int64_t id : ids) {
    int64_t chosen = kNoRow;
    for (int64_t set = SetOf(id); chosen == kNoRow; set = NextSet(set)) {
      uint64_t smallest = 0;
      for (int64_t place = set * kWays; place < (set + 1) * kWays; ++place) {
        if (ids_[place] == kNoRow) {
          chosen = place;
          break;
        }
        if (Pinned(place)) continue;
        const uint64_t use = uses_[place].load(std::memory_order_relaxed);
        if (chosen == kNoRow || use < smallest) chosen = place, smallest = use;
      }
    }
    const int64_t old = ids_[chosen];
    placed->push_back({id, chosen, old, old != kNoRow && dirty_[chosen] != 0,
                       uses_[chosen].load(std::memory_order_relaxed)});
    if (old != kNoRow) CountPassing(old, chosen, -1);
    CountPassing(id, chosen, 1);
    ids_[chosen] = id;
    dirty_[chosen] = 0;
    const uint64_t count = counts_ ? 1 : 0;
    uses_[chosen].store(count << kTimeBits | now_, std::memory_order_relaxed);
    ++pinned_;
  }
  return Status();
}

void RowCache::Undo(const Placed& placed, bool restore) {
  CountPassing(placed.id, placed.place, -1);
  --pinned_;
  const bool back = restore && placed.old_id != kNoRow;
  ids_[placed.place] = back ? placed.old_id : kNoRow;
  dirty_[placed.place] = back && placed.old_is_dirty ? 1 : 0;
  uses_[placed.place].store(back ? placed.old_use : 0, std::memory_order_relaxed);
  if (back) CountPassing(placed.old_id, placed.place, 1);
}

}  // namespace twml
