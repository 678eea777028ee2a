// Rows that are read from a file before the lookup that needs them.
//
// Lookups are announced in their order. The rows that a lookup needs and the cache does not have
// are read in the background, as many as there are slots; a row that leaves the cache although an
// announced lookup needs it goes to a slot as well. A lookup that finds a row here belongs to the
// announcement that has asked for it, so all announcements before that one are forgotten.
#ifndef TWML_CORE_ROW_READ_AHEAD_H_
#define TWML_CORE_ROW_READ_AHEAD_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/core/aligned_buffer.h"
#include "cc/core/row_cache.h"
#include "cc/core/row_store.h"

namespace twml {

// The caller must serialize all calls, except where a comment says otherwise.
class RowReadAhead {
 public:
  // Has room for `capacity` rows. The cache must exist as long as this object.
  RowReadAhead(int64_t capacity, const RowCache* cache);

  // Reads from this store from now on. There must be no rows; see Clear.
  void Use(RowStore* store, AlignedBuffer records, int64_t row_bytes);
  AlignedBuffer RecordsOf(int64_t row_bytes) const { return AlignedBuffer(capacity_ * row_bytes); }

  bool empty() const { return capacity_ == 0; }

  // Announces the distinct ids of a later lookup, and begins to read.
  void Announce(const std::vector<int64_t>& ids);

  // Where the record of a row that leaves a place of the cache is to be kept, because an announced
  // lookup needs it; null if it is not needed, or there is no room.
  char* Keep(int64_t id, int64_t place);

  // A lookup begins: counts it, and forgets announcements that none of the last ones has come to.
  void BeginLookup() { ++lookups_; }
  // The slot of a row that enters a place of the cache, or -1. It keeps its row until Release.
  int Take(int64_t id, int64_t place);
  // Forgets the announcements before the one of the rows that were taken.
  void EndTaking();
  // A row that was taken: whether it has arrived, whether it could not be read, and its record.
  // Ready and RecordAt may be called at any time.
  bool Ready(int slot) const { return slots_[slot].state.load() != kReading; }
  bool Failed(int slot) const { return slots_[slot].state.load() == kFailed; }
  const char* RecordAt(int slot) const { return records_.data() + slot * row_bytes_; }
  void Release(int slot);
  // A row that was taken and is not used after all stays here.
  void PutBack(int slot) { slots_[slot].used = false; }

  // Reads more of the announced rows, as far as there is room.
  void Issue();

  // The number of rows that have arrived so far; waits for another one. Both at any time.
  int64_t arrivals() const;
  void WaitForArrival(int64_t after) const;

  // Forgets all announcements and rows, after what is being read has arrived.
  void Clear();

  int64_t num_reads() const { return num_reads_; }

 private:
  static constexpr int kReading = 0, kReady = 1, kFailed = 2;
  struct Slot {
    int64_t id = RowCache::kNoRow;
    int64_t first = 0, last = 0;  // numbers of announcements
    bool used = false;            // by the lookup that runs
    std::atomic<int> state{kReady};
  };
  struct Announcement {
    int64_t number;
    int64_t lookup;                // the number of lookups before it
    std::vector<int64_t> waiting;  // ids that are not read yet, the next one last
    std::vector<int> slots;        // of the rows that are read
  };
  // The slot of each id.
  class Index {
   public:
    explicit Index(int64_t capacity);
    int Find(int64_t id) const;
    void Insert(int64_t id, int slot);
    void Remove(int64_t id);

   private:
    struct Item {
      int64_t id;
      int slot;
    };
    std::vector<Item> items_;
    uint64_t mask_;
  };

  int TakeSlot(int64_t id, int64_t announcement);
  void CollectAbandoned();
  void DropBefore(int64_t number);

  const int64_t capacity_;
  const RowCache* const cache_;
  RowStore* store_ = nullptr;
  int64_t row_bytes_ = 0;
  std::vector<int64_t> announced_;  // of each place: the last announcement that has its id
  AlignedBuffer records_;
  std::unique_ptr<Slot[]> slots_;
  std::vector<int> free_slots_, abandoned_;
  Index index_;
  std::deque<Announcement> announcements_;
  int64_t last_announcement_ = 0, consumed_ = 0, newest_taken_ = 0;
  int64_t lookups_ = 0, num_reads_ = 0;

  mutable std::mutex mu_;
  mutable std::condition_variable arrived_;
  int64_t arrivals_ = 0;
};

}  // namespace twml

#endif  // TWML_CORE_ROW_READ_AHEAD_H_
