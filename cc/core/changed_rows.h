// A record of the rows of a table that changed, for any number of consumers that copy them.
//
// Time is divided into intervals, and each row has the number of the interval in which it was last
// marked. During an interval a mark is one bit, so that the marks of a large table stay in a near
// cache; the interval numbers are written when a consumer collects rows. A consumer that has
// everything up to the end of interval i needs the rows that were marked after it. Collecting for a
// consumer ends the current interval, so later marks are distinguished from earlier ones. A
// consumer whose copy got lost collects the same rows again, and more.
#ifndef TWML_CORE_CHANGED_ROWS_H_
#define TWML_CORE_CHANGED_ROWS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/span.h"

namespace twml {

// Threads may mark concurrently with each other, but not with EndInterval and After. Callers hold
// a lock of the table.
class ChangedRows {
 public:
  static constexpr int64_t kNothing = 0;  // the interval of a consumer that has no rows yet

  // All rows count as marked in the first interval.
  explicit ChangedRows(int64_t num_rows)
      : num_rows_(num_rows),
        marks_(new uint32_t[num_rows]()),
        current_(new std::atomic<uint64_t>[NumWords()]()) {}

  int64_t num_rows() const { return num_rows_; }

  // Ids out of range are ignored, because the update that they belong to reports them.
  template <class Id>
  void Mark(Span<const Id> ids, const ParallelFor& parallel_for) {
    constexpr int64_t kNsPerMark = 1;
    parallel_for(ids.size(), kNsPerMark, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto id = static_cast<uint64_t>(ids[i]);
        if (id >= static_cast<uint64_t>(num_rows_)) continue;
        std::atomic<uint64_t>& word = current_[id / kWord];
        const uint64_t bit = uint64_t{1} << (id % kWord);
        // Most rows of a batch are marked already, and a read is cheaper than an atomic write.
        if ((word.load(std::memory_order_relaxed) & bit) == 0) {
          word.fetch_or(bit, std::memory_order_relaxed);
        }
      }
    });
  }
  void MarkAll() { all_marked_.store(interval_.load()); }

  // Ends the current interval and returns its number. There must be less than 2^32 intervals.
  int64_t EndInterval() {
    WriteNumbers();
    return interval_++;
  }

  // Whether all rows count as marked after interval `after`.
  bool AllAfter(int64_t after) const { return after < all_marked_.load(); }

  // The rows that were marked after interval `after`, in ascending order.
  std::vector<int64_t> After(int64_t after) {
    WriteNumbers();
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < num_rows_; ++i) {
      if (marks_[i] > after) rows.push_back(i);
    }
    return rows;
  }

 private:
  static constexpr int64_t kWord = 64;

  int64_t NumWords() const { return (num_rows_ + kWord - 1) / kWord; }

  // Gives the rows that were marked in this interval its number.
  void WriteNumbers() {
    const auto now = static_cast<uint32_t>(interval_.load());
    for (int64_t w = 0; w < NumWords(); ++w) {
      uint64_t bits = current_[w].load(std::memory_order_relaxed);
      if (bits == 0) continue;
      current_[w].store(0, std::memory_order_relaxed);
      for (; bits != 0; bits &= bits - 1) marks_[w * kWord + __builtin_ctzll(bits)] = now;
    }
  }

  const int64_t num_rows_;
  std::unique_ptr<uint32_t[]> marks_;
  std::unique_ptr<std::atomic<uint64_t>[]> current_;  // a bit for each row, of this interval
  std::atomic<int64_t> interval_{1};
  std::atomic<int64_t> all_marked_{1};  // the last interval in which all rows were marked
};

}  // namespace twml

#endif  // TWML_CORE_CHANGED_ROWS_H_
