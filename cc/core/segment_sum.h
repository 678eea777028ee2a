// Sums of weighted table rows over segments: the one loop behind forward, backward and duplicate
// sums, balanced whatever the skew and identical for any number of threads.
#ifndef TWML_CORE_SEGMENT_SUM_H_
#define TWML_CORE_SEGMENT_SUM_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/simd.h"
#include "cc/core/span.h"

namespace twml {

// Longer segments are summed in pieces of this many entries, whose sums are then added in order:
// the cut depends on the data alone, so any thread may take any piece.
constexpr int64_t kSegmentPiece = 2048;

// Calls body(begin, end) on ranges of segments of about equal work, counting `overhead` entries'
// worth for each segment beside its entries.
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

// For each segment s: sum = sum_k values[k] * table[ids[k]] over its entries k (values empty: all
// 1), written to place(s, scratch), then done(s, sum). `scratch` holds dim floats of the calling
// thread, for callers that keep no sum; ahead(s) may prefetch what done(s) will touch.
template <class W, class Id, class Place, class Ahead, class Done>
void SumSegments(const W* table, int64_t dim, Span<const int64_t> splits, const Id* ids,
                 const float* values, const ParallelFor& parallel_for, Place place, Ahead ahead,
                 Done done) {
  const auto sum_rows = Kernels().table<W>().template of<Id>().sum_rows;
  const int64_t num_segments = splits.size() - 1;
  const int64_t num_entries = splits[num_segments];
  const int64_t cost = 2 + dim / 16;

  const auto sum_entries = [&](int64_t begin, int64_t end, float* out) {
    sum_rows(table, dim, ids + begin, values == nullptr ? nullptr : values + begin, end - begin,
             num_entries - begin, out);
  };

  // The pieces of long segments first: (segment's first piece, by segment) and their sums.
  std::vector<int64_t> long_segments, first_piece{0};
  for (int64_t s = 0; num_entries > kSegmentPiece && s < num_segments; ++s) {
    const int64_t size = splits[s + 1] - splits[s];
    if (size <= kSegmentPiece) continue;
    long_segments.push_back(s);
    first_piece.push_back(first_piece.back() + (size + kSegmentPiece - 1) / kSegmentPiece);
  }
  std::vector<float> pieces(first_piece.back() * dim);
  parallel_for(first_piece.back(), cost * kSegmentPiece, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t i =
          std::upper_bound(first_piece.begin(), first_piece.end(), p) - first_piece.begin() - 1;
      const int64_t from = splits[long_segments[i]] + (p - first_piece[i]) * kSegmentPiece;
      const int64_t to = std::min(from + kSegmentPiece, splits[long_segments[i] + 1]);
      sum_entries(from, to, pieces.data() + p * dim);
    }
  });

  const auto add_pieces = [&](int64_t s, float* out) {
    const int64_t i =
        std::lower_bound(long_segments.begin(), long_segments.end(), s) - long_segments.begin();
    const float* piece = pieces.data() + first_piece[i] * dim;
    std::copy_n(piece, dim, out);
    for (int64_t p = first_piece[i] + 1; p < first_piece[i + 1]; ++p) {
      piece += dim;
      for (int64_t d = 0; d < dim; ++d) out[d] += piece[d];
    }
  };

  ForSegments(splits, 2, cost, parallel_for, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAhead = 8;
    std::vector<float> scratch(dim);
    for (int64_t s = begin; s < std::min(begin + kAhead, end); ++s) ahead(s);
    for (int64_t s = begin; s < end; ++s) {
      if (s + kAhead < end) ahead(s + kAhead);
      float* sum = place(s, scratch.data());
      if (splits[s + 1] - splits[s] > kSegmentPiece) {
        add_pieces(s, sum);
      } else {
        sum_entries(splits[s], splits[s + 1], sum);
      }
      done(s, sum);
    }
  });
}

}  // namespace twml

#endif  // TWML_CORE_SEGMENT_SUM_H_
