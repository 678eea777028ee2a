// The rows of tables in files that a request needs: which ones, and copies of them.
#ifndef TWML_CORE_SCORER_FETCHED_ROWS_H_
#define TWML_CORE_SCORER_FETCHED_ROWS_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cc/core/keyed_hash.h"
#include "cc/core/scorer/shared_row_cache.h"

namespace twml::scorer {

// Memory that starts at a page and grows, and whose content is lost when it grows.
class PageBuffer {
 public:
  static constexpr int64_t kPage = 4096;

  char* Reserve(int64_t bytes) {
    if (bytes > size_) {
      const int64_t size = (bytes / kPage + 1) * kPage;
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<char*>(std::aligned_alloc(kPage, static_cast<size_t>(size))));
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = size;
    }
    return memory_.get();
  }
  char* data() const { return memory_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
  int64_t size_ = 0;
};

// The rows of one table. First the steps list ids, block by block. TableFiles::Fetch then gives
// each distinct row a slot, replaces ids by slots, and fills the slots. Then steps that run read
// them in the order in which they listed them.
class RowsOfTable {
 public:
  static constexpr int64_t kNoSum = -1;

  void Begin(int64_t num_blocks);
  void BeginBlock(int64_t block);
  void AddIds(const int64_t* ids, int64_t n) { entries_.insert(entries_.end(), ids, ids + n); }
  // The place of a sum in `sums`, or kNoSum if its rows are listed.
  void AddSum(int64_t place) { sum_places_.push_back(place); }

  // Numbers the distinct ids in the order of their first occurrence, and replaces ids by numbers.
  void Number();

  const std::vector<int64_t>& ids() const { return distinct_; }
  int64_t num_entries() const { return static_cast<int64_t>(entries_.size()); }
  const int64_t* slots(int64_t block) const { return entries_.data() + starts_[block].entry; }
  const int64_t* sum_places(int64_t block) const { return sum_places_.data() + starts_[block].sum; }
  const float* sum(int64_t place) const { return sums.data() + place; }

  int64_t bytes() const;

  PageBuffer rows;                           // of the slots
  std::vector<float> sums;                   // that were in the cache of sums
  std::vector<SharedRowCache::Row> missing;  // of TableFiles::Fetch

 private:
  struct Start {
    int64_t entry, sum;
  };
  // A hash table with open addressing. A slot is free unless it has the current stamp, so that
  // nothing has to be cleared.
  struct Slot {
    int64_t id;
    uint32_t number;
    uint32_t stamp;
  };

  KeyedHash hash_;
  std::vector<int64_t> entries_;     // ids, and then slots
  std::vector<int64_t> sum_places_;  // of each sum, in order
  std::vector<Start> starts_;        // of blocks
  std::vector<int64_t> distinct_;
  std::vector<Slot> index_;
  uint32_t stamp_ = 0;
};

struct FetchedRows {
  void Begin(int64_t num_tables, int64_t num_blocks);
  void BeginBlock(int64_t block);
  int64_t bytes() const;

  std::vector<RowsOfTable> tables;
  std::string key;    // memory for SumsCache
  PageBuffer blocks;  // what reads return, with rows that were not needed
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_FETCHED_ROWS_H_
