// The rows of a table that is larger than memory: a cache of some rows, and all others in a file.
//
// A record is all that belongs to a row: its weights and, beside them, the row of each slot of an
// optimizer. These are the parts of a record. The caller has the memory of the cache, one matrix
// [cache rows, bytes of the part] for each part, and passes it to every function that needs it.
#ifndef TWML_CORE_TIERED_ROWS_H_
#define TWML_CORE_TIERED_ROWS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/row_cache.h"
#include "cc/core/row_store.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

struct TieredRowsOptions {
  std::string path;
  int64_t num_rows = 0;
  int64_t cache_rows = 0;     // at least; see RowCache::PlacesFor
  int64_t prefetch_rows = 0;  // rows that are read ahead, at most
  RowPolicy policy = RowPolicy::kLru;
  bool direct = true;
  bool use_io_uring = true;
  int depth = 64;
};

// One part of a record, and its content in rows that were never written.
struct RowPart {
  int64_t bytes = 0;
  std::string initial;  // [bytes]
};

// Calls that pass the memory of the cache must exclude each other. Prefetch may run beside them.
class TieredRows {
 public:
  struct Statistics {
    int64_t lookups = 0;       // calls of Map that count
    int64_t rows = 0;          // different rows of each lookup, added up
    int64_t misses = 0;        // those of them that were not in the cache
    int64_t prefetched = 0;    // misses that had been read ahead, or were being read
    int64_t prefetches = 0;    // rows that were read ahead
    int64_t written_back = 0;  // rows
    RowStore::Statistics store;
  };
  using Cache = Span<char* const>;  // the matrix of each part

  static Status Create(const TieredRowsOptions& options, std::vector<RowPart> parts,
                       std::unique_ptr<TieredRows>* rows);
  ~TieredRows();

  // The memory of such rows without the matrices of the cache, in bytes.
  static int64_t MemoryBytes(const TieredRowsOptions& options, int64_t row_bytes);

  // Replaces the parts after the first one. All rows get their initial content; the caller sets
  // that of the rows in the cache. For a moment there are two files.
  Status SetParts(std::vector<RowPart> parts);

  // Finds the rows in the cache of ids in [0, num_rows), which may repeat, and brings those that
  // are not there. Rows that leave the cache are written to the file if they have changed. All rows
  // of one call stay in the cache until the next one. `counts` is whether the call is a use of the
  // rows for the policy and the statistics, and `changes` is whether the caller is going to change
  // them; then the ids must be different. After an error no row is lost, and `rows` is undefined.
  template <class Id>
  Status Map(Span<const Id> ids, Cache cache, bool counts, bool changes,
             const ParallelFor& parallel_for, Id* rows);

  // Announces the ids of a later lookup. Rows that are not in the cache are read ahead, as far as
  // there is room. This has no influence on any result.
  template <class Id>
  Status Prefetch(Span<const Id> ids);

  // Copies one part of the rows [begin, begin + count), or of some rows.
  Status ReadPart(int64_t part, int64_t begin, int64_t count, Cache cache, char* values);
  Status ReadRows(Span<const int64_t> ids, Cache cache, const std::vector<char*>& parts);

  // Sets one part of the rows [begin, begin + count).
  Status WritePart(int64_t part, int64_t begin, int64_t count, const char* values, Cache cache);

  int64_t num_rows() const { return options_.num_rows; }
  int64_t cache_rows() const { return cache_.num_places(); }
  const std::vector<RowPart>& parts() const { return parts_; }
  const RowStore& store() const { return *store_; }
  Statistics statistics() const;

 private:
  static constexpr int kReading = 0, kReady = 1, kFailed = 2;
  // A row that is being read ahead or has been.
  struct Staged {
    int64_t id = RowCache::kNoRow;
    int64_t first = 0, last = 0;  // numbers of announcements
    bool used = false;            // by the lookup that runs
    int error = 0;                // if it is kFailed
    std::atomic<int> state{kReady};
  };
  struct Announcement {
    int64_t number;
    int64_t lookup;                // the number of calls of Map before it
    std::vector<int64_t> waiting;  // ids that are not read yet, the next one last
    std::vector<int> staged;       // those that are read
  };
  // The place of each id among the staged rows.
  class StagedIndex {
   public:
    explicit StagedIndex(int64_t capacity);
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

  explicit TieredRows(const TieredRowsOptions& options);
  Status OpenStore(const std::string& path, const std::vector<RowPart>& parts,
                   std::unique_ptr<RowStore>* store) const;
  void Use(std::unique_ptr<RowStore> store, std::vector<RowPart> parts);
  char* StagedRecord(int slot) { return staged_records_.data() + slot * row_bytes_; }
  void Gather(Cache cache, int64_t place, char* record) const;
  void Scatter(const char* record, Cache cache, int64_t place) const;
  Status Evict(const std::vector<RowCache::Placed>& placed, Cache cache);
  Status Load(const std::vector<RowCache::Placed>& placed, Cache cache,
              const ParallelFor& parallel_for, std::unique_lock<std::mutex>* lock);
  void MarkChanged(Span<const int64_t> places);

  // Of the rows that are read ahead; with the lock.
  int TakeSlot(int64_t id, int64_t first, int64_t last);
  void ReleaseSlot(int slot);
  void DropBefore(int64_t number);
  void IssuePrefetches();
  void CollectAbandoned();
  void DropPrefetched();

  const TieredRowsOptions options_;
  std::vector<RowPart> parts_;
  int64_t row_bytes_ = 0;
  std::string initial_;  // a record
  std::unique_ptr<RowStore> store_;

  mutable std::mutex mu_;
  RowCache cache_;
  std::vector<int64_t> announced_;  // of each place: the last announcement that has its id
  Statistics statistics_;
  int64_t lookups_ = 0;

  std::vector<char> staged_records_;
  std::unique_ptr<Staged[]> staged_;
  std::vector<int> free_slots_, abandoned_;
  StagedIndex staged_index_;
  std::deque<Announcement> announcements_;
  int64_t last_announcement_ = 0, consumed_ = 0;

  std::mutex ready_mu_;
  std::condition_variable ready_;
  int64_t completed_ = 0;
};

}  // namespace twml

#endif  // TWML_CORE_TIERED_ROWS_H_
