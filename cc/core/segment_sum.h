// Sums of weighted table rows over segments. The forward pass, the backward pass and the sums of
// duplicates all use this loop. Work is balanced for any distribution of segment lengths, and the
// result is bit-identical for any number of threads.
#ifndef TWML_CORE_SEGMENT_SUM_H_
#define TWML_CORE_SEGMENT_SUM_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/simd_dispatch.h"
#include "cc/core/span.h"

namespace twml {

// Longer segments are summed in pieces of this many entries, whose sums are then added in order.
// The pieces depend only on the data, so any thread may sum any piece.
constexpr int64_t kSegmentPiece = 2048;

// The approximate time for one entry's row in nanoseconds.
constexpr int64_t CostOfEntry(int64_t dim) { return 2 + dim / 16; }

// Calls body(begin, end) on ranges of segments with about equal work. Each segment counts as its
// number of entries plus `overhead`.
template <class Body>
void ForSegments(Span<const int64_t> splits, int64_t overhead, int64_t cost_per_entry,
                 const ParallelFor& parallel_for, Body body) {
  const int64_t n = splits.size() - 1;
  const auto first_at = [&](int64_t work) {
    int64_t low = 0, high = n;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (splits[middle] + middle * overhead < work) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  parallel_for(splits[n] + n * overhead, cost_per_entry, [&](int64_t begin, int64_t end) {
    const int64_t stop = end == splits[n] + n * overhead ? n : first_at(end);
    if (const int64_t start = first_at(begin); start < stop) body(start, stop);
  });
}

// Computes the sum of values[k] * table[ids[k]] over the entries [begin, end). All values are 1 if
// `values` is null.
template <class W, class Id>
struct EntrySum {
  const W* table;
  int64_t dim;
  const Id* ids;
  const float* values;
  int64_t num_entries;  // of all segments together

  void operator()(int64_t begin, int64_t end, float* out) const {
    sum_rows(table, dim, ids + begin, values == nullptr ? nullptr : values + begin, end - begin,
             num_entries - begin, out);
  }

  decltype(IdKernels<Id, W>::sum_rows) sum_rows =
      GetRowKernels().ForWeights<W>().template ForIds<Id>().sum_rows;
};

// The sums of the segments that are summed in pieces.
class LongSegments {
 public:
  // sum_entries(begin, end, out) writes the sum of the entries [begin, end), which is `dim` floats.
  template <class SumEntries>
  LongSegments(Span<const int64_t> splits, int64_t dim, int64_t cost_per_entry,
               const ParallelFor& parallel_for, SumEntries sum_entries)
      : dim_(dim) {
    const int64_t num_segments = splits.size() - 1;
    if (splits[num_segments] <= kSegmentPiece) return;
    for (int64_t s = 0; s < num_segments; ++s) {
      const int64_t size = splits[s + 1] - splits[s];
      if (size <= kSegmentPiece) continue;
      segments_.push_back(s);
      first_piece_.push_back(first_piece_.back() + (size + kSegmentPiece - 1) / kSegmentPiece);
    }
    pieces_.resize(first_piece_.back() * dim);
    parallel_for(
        first_piece_.back(), cost_per_entry * kSegmentPiece, [&](int64_t begin, int64_t end) {
          for (int64_t p = begin; p < end; ++p) {
            const int64_t i = std::upper_bound(first_piece_.begin(), first_piece_.end(), p) -
                              first_piece_.begin() - 1;
            const int64_t s = segments_[i];
            const int64_t from = splits[s] + (p - first_piece_[i]) * kSegmentPiece;
            const int64_t to = std::min(from + kSegmentPiece, splits[s + 1]);
            sum_entries(from, to, pieces_.data() + p * dim);
          }
        });
  }

  // Calls visit_short(begin, end) on the ranges of segments between long ones, and visit_long(s) on
  // each long one.
  template <class VisitShort, class VisitLong>
  void Visit(int64_t begin, int64_t end, VisitShort visit_short, VisitLong visit_long) const {
    auto next = std::lower_bound(segments_.begin(), segments_.end(), begin);
    for (; next != segments_.end() && *next < end; ++next) {
      if (begin < *next) visit_short(begin, *next);
      visit_long(*next);
      begin = *next + 1;
    }
    if (begin < end) visit_short(begin, end);
  }

  // Writes the sum of the long segment s.
  void Sum(int64_t s, float* out) const {
    const int64_t i = std::lower_bound(segments_.begin(), segments_.end(), s) - segments_.begin();
    const float* piece = pieces_.data() + first_piece_[i] * dim_;
    std::copy_n(piece, dim_, out);
    for (int64_t p = first_piece_[i] + 1; p < first_piece_[i + 1]; ++p) {
      piece += dim_;
      for (int64_t d = 0; d < dim_; ++d) out[d] += piece[d];
    }
  }

 private:
  const int64_t dim_;
  std::vector<int64_t> segments_, first_piece_{0};
  std::vector<float> pieces_;
};

// For each segment s, writes the sum of values[k] * table[ids[k]] over its entries k to
// destination(s, scratch) and then calls consume(s, sum). All values are 1 if `values` is null.
// `scratch` are dim floats of the calling thread, for callers that do not keep the sums.
// prefetch(s) is called ahead of time and may prefetch the memory that consume(s) will use.
template <class W, class Id, class Destination, class Prefetch, class Consume>
void SumSegments(const W* table, int64_t dim, Span<const int64_t> splits, const Id* ids,
                 const float* values, const ParallelFor& parallel_for, Destination destination,
                 Prefetch prefetch, Consume consume) {
  const int64_t cost = CostOfEntry(dim);
  const EntrySum<W, Id> sum_entries{table, dim, ids, values, splits[splits.size() - 1]};
  const LongSegments pieces(splits, dim, cost, parallel_for, sum_entries);
  ForSegments(splits, 2, cost, parallel_for, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAhead = 8;
    std::vector<float> scratch(dim);
    for (int64_t s = begin; s < std::min(begin + kAhead, end); ++s) prefetch(s);
    for (int64_t s = begin; s < end; ++s) {
      if (s + kAhead < end) prefetch(s + kAhead);
      float* sum = destination(s, scratch.data());
      if (splits[s + 1] - splits[s] > kSegmentPiece) {
        pieces.Sum(s, sum);
      } else {
        sum_entries(splits[s], splits[s + 1], sum);
      }
      consume(s, sum);
    }
  });
}

}  // namespace twml

#endif  // TWML_CORE_SEGMENT_SUM_H_
