// A cache of rows in memory that threads share.
#ifndef TWML_CORE_SCORER_SHARED_ROW_CACHE_H_
#define TWML_CORE_SCORER_SHARED_ROW_CACHE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/core/keyed_hash.h"
#include "cc/core/row_cache.h"

namespace twml::scorer {

// The rows are divided among parts with a lock each. Callers get copies of rows, so a row may leave
// the cache at any time.
class SharedRowCache {
 public:
  // A row with the position of its copy in the memory of the caller.
  struct Row {
    int64_t id;
    int64_t slot;
    size_t part = 0;  // set by Find
  };

  // A cache that takes at most about `bytes`, and at least one set of rows.
  SharedRowCache(int64_t bytes, int64_t row_bytes);

  int64_t num_places() const;
  int64_t bytes() const;
  // The memory that a cache for so many rows takes.
  static int64_t BytesFor(int64_t rows, int64_t row_bytes);

  // Copies each row that is in the cache to out + slot * row_bytes. `rows` is sorted by part, so
  // that each lock is taken once, and what is missing is kept, in the sorted order. Ids must
  // differ.
  void Find(std::vector<Row>* rows, char* out);

  // Puts rows that Find did not find into the cache, in the same order, as far as there are places.
  void Insert(const std::vector<Row>& rows, const char* from);

 private:
  struct Part {
    explicit Part(int64_t places) : cache(places, RowPolicy::kLru) {}
    std::mutex mu;
    RowCache cache;
    std::unique_ptr<char[]> rows;
    // Reused by the calls that hold the lock.
    std::vector<int64_t> ids, places;
    std::vector<RowCache::Placed> placed;
  };

  size_t PartOf(int64_t id) const;
  // Calls body(part, begin, end) with the range of rows of each part; `rows` is sorted by part.
  template <class Body>
  void ForParts(const std::vector<Row>& rows, const Body& body);

  const KeyedHash hash_;
  const int64_t row_bytes_;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_SHARED_ROW_CACHE_H_
