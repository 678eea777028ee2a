#include "cc/core/row_read_ahead.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "cc/core/hash.h"

namespace twml {
namespace {

// Announcements that no lookup has come to after so many lookups are forgotten.
constexpr int64_t kMaxAge = 64;

uint64_t PowerOfTwo(int64_t at_least) {
  uint64_t n = 1;
  while (n < static_cast<uint64_t>(at_least)) n *= 2;
  return n;
}

}  // namespace

RowReadAhead::Index::Index(int64_t capacity)
    : items_(PowerOfTwo(2 * capacity + 1), Item{0, -1}), mask_(items_.size() - 1) {}

int RowReadAhead::Index::Find(int64_t id) const {
  for (uint64_t at = Mix64(static_cast<uint64_t>(id));; ++at) {
    const Item& item = items_[at & mask_];
    if (item.slot < 0 || item.id == id) return item.slot;
  }
}

void RowReadAhead::Index::Insert(int64_t id, int slot) {
  uint64_t at = Mix64(static_cast<uint64_t>(id));
  while (items_[at & mask_].slot >= 0) ++at;
  items_[at & mask_] = {id, slot};
}

void RowReadAhead::Index::Remove(int64_t id) {
  uint64_t hole = Mix64(static_cast<uint64_t>(id)) & mask_;
  while (items_[hole].id != id || items_[hole].slot < 0) hole = (hole + 1) & mask_;
  for (uint64_t at = (hole + 1) & mask_; items_[at].slot >= 0; at = (at + 1) & mask_) {
    // An item may move to the hole unless its home lies behind the hole.
    const uint64_t home = Mix64(static_cast<uint64_t>(items_[at].id)) & mask_;
    if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
    items_[hole] = items_[at];
    hole = at;
  }
  items_[hole].slot = -1;
}

RowReadAhead::RowReadAhead(int64_t capacity, const RowCache* cache)
    : capacity_(capacity),
      cache_(cache),
      announced_(capacity > 0 ? cache->num_places() : 0),
      slots_(new Slot[capacity]),
      index_(capacity) {
  // Each slot is in at most one of the lists, so they never grow.
  free_slots_.reserve(capacity);
  abandoned_.reserve(capacity);
  for (int64_t i = capacity - 1; i >= 0; --i) free_slots_.push_back(static_cast<int>(i));
}

void RowReadAhead::Use(RowStore* store, AlignedBuffer records, int64_t row_bytes) {
  store_ = store;
  records_ = std::move(records);
  row_bytes_ = row_bytes;
}

void RowReadAhead::Announce(const std::vector<int64_t>& ids) {
  DropBefore(consumed_);
  Announcement announcement = {++last_announcement_, lookups_, {}, {}};
  for (const int64_t id : ids) {
    const int64_t place = cache_->Peek(id);
    if (place != RowCache::kNoRow) {
      announced_[place] = announcement.number;
    } else {
      announcement.waiting.push_back(id);
    }
  }
  std::reverse(announcement.waiting.begin(), announcement.waiting.end());
  announcements_.push_back(std::move(announcement));
  Issue();
}

char* RowReadAhead::Keep(int64_t id, int64_t place) {
  if (announced_.empty()) return nullptr;
  const int64_t announced = std::exchange(announced_[place], 0);
  if (id == RowCache::kNoRow || announced <= consumed_) return nullptr;
  if (announcements_.empty() || index_.Find(id) >= 0) return nullptr;
  const int slot = TakeSlot(id, announced);
  if (slot < 0) return nullptr;
  slots_[slot].state = kReady;
  return records_.data() + slot * row_bytes_;
}

int RowReadAhead::Take(int64_t id, int64_t place) {
  const int slot = capacity_ > 0 ? index_.Find(id) : -1;
  if (slot < 0) return -1;
  slots_[slot].used = true;
  announced_[place] = slots_[slot].last;
  newest_taken_ = std::max(newest_taken_, slots_[slot].first);
  return slot;
}

void RowReadAhead::EndTaking() { DropBefore(newest_taken_); }

// Returns -1 if there is no room.
int RowReadAhead::TakeSlot(int64_t id, int64_t announcement) {
  CollectAbandoned();
  if (free_slots_.empty()) return -1;
  const int slot = free_slots_.back();
  for (auto each = announcements_.rbegin(); each != announcements_.rend(); ++each) {
    if (each->number <= announcement || std::next(each) == announcements_.rend()) {
      try {
        each->slots.push_back(slot);
      } catch (const std::bad_alloc&) {
        return -1;
      }
      break;
    }
  }
  free_slots_.pop_back();
  slots_[slot].id = id;
  slots_[slot].first = slots_[slot].last = announcement;
  slots_[slot].state = kReading;
  index_.Insert(id, slot);
  return slot;
}

void RowReadAhead::Release(int slot) {
  if (slots_[slot].id != RowCache::kNoRow) index_.Remove(slots_[slot].id);
  slots_[slot].id = RowCache::kNoRow;
  slots_[slot].used = false;
  if (slots_[slot].state.load() == kReading) {
    abandoned_.push_back(slot);  // its memory is still written
  } else {
    free_slots_.push_back(slot);
  }
}

void RowReadAhead::CollectAbandoned() {
  if (!free_slots_.empty()) return;
  const auto done =
      std::partition(abandoned_.begin(), abandoned_.end(), [&](int slot) { return !Ready(slot); });
  free_slots_.insert(free_slots_.end(), done, abandoned_.end());
  abandoned_.erase(done, abandoned_.end());
}

// Drops the announcements that precede the one of the current lookup, and the expired ones.
void RowReadAhead::DropBefore(int64_t number) {
  consumed_ = std::max(consumed_, number);
  while (!announcements_.empty() && (announcements_.front().number < consumed_ ||
                                     lookups_ - announcements_.front().lookup > kMaxAge)) {
    const Announcement dropped = std::move(announcements_.front());
    announcements_.pop_front();
    for (const int number_of_slot : dropped.slots) {
      Slot& slot = slots_[number_of_slot];
      // It may have been released, and may have another row.
      if (slot.id == RowCache::kNoRow || slot.first > dropped.number || slot.used) continue;
      if (slot.last > dropped.number && !announcements_.empty()) {
        try {
          announcements_.front().slots.push_back(number_of_slot);
          continue;
        } catch (const std::bad_alloc&) {  // It is read again.
        }
      }
      Release(number_of_slot);
    }
  }
}

void RowReadAhead::Issue() {
  for (Announcement& announcement : announcements_) {
    while (!announcement.waiting.empty()) {
      CollectAbandoned();
      if (free_slots_.empty()) return;
      const int64_t id = announcement.waiting.back();
      announcement.waiting.pop_back();
      const int64_t place = cache_->Peek(id);
      if (place != RowCache::kNoRow) {
        announced_[place] = std::max(announced_[place], announcement.number);
        continue;
      }
      const int known = index_.Find(id);
      if (known >= 0) {
        slots_[known].last = std::max(slots_[known].last, announcement.number);
        continue;
      }
      if (!store_->Has(id)) continue;
      const int slot = TakeSlot(id, announcement.number);
      if (slot < 0) return;
      try {
        store_->Read(id, /*urgent=*/false, [this, slot](const char* record, int error) {
          if (error == 0) std::memcpy(records_.data() + slot * row_bytes_, record, row_bytes_);
          std::lock_guard<std::mutex> guard(mu_);
          slots_[slot].state = error == 0 ? kReady : kFailed;
          ++arrivals_;
          arrived_.notify_all();
        });
      } catch (...) {
        slots_[slot].state = kReady;
        Release(slot);
        throw;
      }
      ++num_reads_;
    }
  }
}

int64_t RowReadAhead::arrivals() const {
  std::lock_guard<std::mutex> guard(mu_);
  return arrivals_;
}

void RowReadAhead::WaitForArrival(int64_t after) const {
  std::unique_lock<std::mutex> guard(mu_);
  arrived_.wait(guard, [&] { return arrivals_ != after; });
}

void RowReadAhead::Clear() {
  announcements_.clear();
  {
    std::unique_lock<std::mutex> guard(mu_);
    arrived_.wait(guard, [&] {
      return std::all_of(slots_.get(), slots_.get() + capacity_,
                         [](const Slot& slot) { return slot.state.load() != kReading; });
    });
  }
  for (int64_t i = 0; i < capacity_; ++i) {
    if (slots_[i].id != RowCache::kNoRow) Release(static_cast<int>(i));
  }
}

}  // namespace twml
