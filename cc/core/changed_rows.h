// A record of the rows of a table that changed, for any number of consumers that copy them.
//
// Time is divided into intervals, and each row has the number of the interval in which it was last
// marked. During an interval a mark is a byte that is set without being read, which costs less than
// setting a bit; the interval numbers are written when a consumer collects rows. A consumer that
// has everything up to the end of interval i needs the rows that were marked after it. Collecting
// for a consumer ends the current interval, so later marks are distinguished from earlier ones. A
// consumer whose copy got lost collects the same rows again, and more.
#ifndef TWML_CORE_CHANGED_ROWS_H_
#define TWML_CORE_CHANGED_ROWS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
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
        current_(new uint8_t[num_rows + kWord]()) {}

  int64_t num_rows() const { return num_rows_; }

  // Ids out of range are ignored, because the update that they belong to reports them.
  template <class Id>
  void Mark(Span<const Id> ids, const ParallelFor& parallel_for) {
    constexpr int64_t kNsPerMark = 1;
    parallel_for(ids.size(), kNsPerMark, [&](int64_t begin, int64_t end) {
      const auto num_rows = static_cast<uint64_t>(num_rows_);
      for (int64_t i = begin; i < end; ++i) {
        // The byte after the bytes of the rows takes the ids that are ignored, without a branch.
        const uint64_t row = std::min(static_cast<uint64_t>(ids[i]), num_rows);
        __atomic_store_n(&current_[row], 1, __ATOMIC_RELAXED);
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
  static constexpr int64_t kWord = sizeof(uint64_t);

  // Gives the rows that were marked in this interval its number.
  void WriteNumbers() {
    const auto now = static_cast<uint32_t>(interval_.load());
    for (int64_t first = 0; first < num_rows_; first += kWord) {
      uint64_t marks;
      std::memcpy(&marks, &current_[first], kWord);
      if (marks == 0) continue;
      const int64_t end = std::min(first + kWord, num_rows_);
      for (int64_t row = first; row < end; ++row) {
        if (current_[row] != 0) marks_[row] = now;
      }
      std::memset(&current_[first], 0, kWord);
    }
  }

  const int64_t num_rows_;
  std::unique_ptr<uint32_t[]> marks_;
  std::unique_ptr<uint8_t[]> current_;  // a byte for each row, of this interval; and padding
  std::atomic<int64_t> interval_{1};
  std::atomic<int64_t> all_marked_{1};  // the last interval in which all rows were marked
};

}  // namespace twml

#endif  // TWML_CORE_CHANGED_ROWS_H_
