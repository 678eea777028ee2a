// The rows of a table that is larger than memory: a cache of some rows, and all others in a file.
//
// A record is all that belongs to a row: its weights and, beside them, the row of each slot of an
// optimizer. These are the parts of a record. The caller has the memory of the cache, one matrix
// [cache rows, bytes of the part] for each part, and passes it to every function that needs it.
#ifndef TWML_CORE_TIERED_ROWS_H_
#define TWML_CORE_TIERED_ROWS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/fork.h"
#include "cc/core/parallel.h"
#include "cc/core/row_cache.h"
#include "cc/core/row_read_ahead.h"
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
  IoFault fault = nullptr;  // for tests
};

// One part of a record, and its content in rows that were never written.
struct RowPart {
  int64_t bytes = 0;
  std::string initial;  // [bytes]
};

// Calls that pass the memory of the cache must exclude each other. All others may run beside them.
// A child of fork() cannot use the rows: the file is its parent's, which goes on writing it. There
// all functions are errors, and the destructor leaves the file as it is.
class TieredRows {
 public:
  struct Statistics {
    int64_t lookups = 0;       // calls of Map that count
    int64_t rows = 0;          // different rows of each lookup, added up
    int64_t misses = 0;        // rows of lookups that were not in the cache
    int64_t prefetched = 0;    // misses that had been read ahead, or were being read
    int64_t prefetches = 0;    // rows that were read ahead
    int64_t written_back = 0;  // rows
    RowStore::Statistics store;
    bool direct = false, uses_io_uring = false;  // of the file
  };
  using Cache = Span<char* const>;  // the matrix of each part

  static Status Create(const TieredRowsOptions& options, std::vector<RowPart> parts,
                       std::unique_ptr<TieredRows>* rows);
  ~TieredRows();

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
  Status GetStatistics(Statistics* statistics) const;

 private:
  explicit TieredRows(const TieredRowsOptions& options);
  Status CheckProcess() const;
  Status OpenStore(const std::string& path, const std::vector<RowPart>& parts,
                   OwnedByProcess<RowStore>* store) const;
  void Use(OwnedByProcess<RowStore> store, std::vector<RowPart> parts, std::string initial,
           AlignedBuffer records) noexcept;
  void Gather(Cache cache, int64_t place, char* record) const;
  void Scatter(const char* record, Cache cache, int64_t place) const;
  Status Evict(const std::vector<RowCache::Placed>& placed, Cache cache);
  Status Load(const std::vector<RowCache::Placed>& placed, Cache cache,
              const ParallelFor& parallel_for, std::unique_lock<std::mutex>* lock);
  void UndoAll(const std::vector<RowCache::Placed>& placed);
  void MarkChanged(Span<const int64_t> places);

  const TieredRowsOptions options_;
  std::vector<RowPart> parts_;
  int64_t row_bytes_ = 0;
  std::string initial_;  // a record
  OwnedByProcess<RowStore> store_;

  const int64_t process_ = ForkNumber();
  mutable std::mutex mu_;
  RowCache cache_;
  OwnedByProcess<RowReadAhead> ahead_;
  Statistics statistics_;
};

}  // namespace twml

#endif  // TWML_CORE_TIERED_ROWS_H_
