// The update of a table row with the sum of its gradient, by the formulas that CPUs use.
#ifndef TWML_CUDA_UPDATE_ROWS_H_
#define TWML_CUDA_UPDATE_ROWS_H_

#include <type_traits>

#include "cc/core/hash.h"
#include "cc/cuda/segment_sum.h"

namespace twml::cuda {

// The sum of squares of a row, in the order of the CPU's kernels with 16 lanes: 16 sums of every
// 16th column, added in order, and then the columns after the last multiple of 16.
class SquaresOfRow {
 public:
  __device__ explicit SquaresOfRow(int64_t dim) : dim_(dim), whole_(dim / kLanes * kLanes) {}

  // Adds the columns column + lane, of which this lane has `g`. Call it for all columns in order,
  // by all lanes.
  __device__ void Add(const Tile& tile, int64_t column, float g) {
    for (int from = 0; from < tile.width && column + from < dim_; from += kLanes) {
      if (column + from < whole_) {
        const float square = tile.Shuffle(g, (from + tile.lane) & (tile.width - 1));
        if (tile.lane < kLanes) sum_ = MulAdd(square, square, sum_);
      } else {
        sum_ = Total(tile);
        for (int64_t d = whole_; d < dim_; ++d) {
          const float square = tile.Shuffle(g, static_cast<int>(d - column));
          sum_ = MulAdd(square, square, sum_);
        }
      }
    }
  }

  // The sum, once all columns were added. All lanes get it.
  __device__ float Get(const Tile& tile) const { return whole_ == dim_ ? Total(tile) : sum_; }

 private:
  static constexpr int kLanes = 16;

  __device__ float Total(const Tile& tile) const {
    float total = 0;
    for (int i = 0; whole_ > 0 && i < kLanes; ++i) total += tile.Shuffle(sum_, i);
    return total;
  }

  const int64_t dim_, whole_;
  float sum_ = 0;  // of every 16th column, and of all columns once the last ones were added
};

// Consumes the sums of the groups of a batch: group u is the gradient of row ids[u].
template <UpdateRule kRule, class W>
struct UpdateRows {
  const int64_t* ids;
  W* weights;
  int64_t table_rows;
  TwmlCudaRule rule;

  template <class Sum>
  __device__ void operator()(const Tile& tile, int64_t group, const Sum& sum, int64_t dim) const {
    const int64_t id = ids[group];
    if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(table_rows)) return;
    uint32_t seed = 0;
    if constexpr (!std::is_same_v<W, float>) {
      seed = static_cast<uint32_t>(Mix64(rule.seed + Mix64(static_cast<uint64_t>(id))));
    }
    using Row = std::conditional_t<std::is_same_v<W, float>, Float32Row, Bfloat16Row>;
    const Row row(weights + id * dim, rule.hyper, seed);
    if constexpr (kRule == UpdateRule::kRowWiseAdagrad) {
      const RowWiseAdagradStep step(rule.hyper, AdvanceRowSlot(tile, id, sum, dim));
      ForSums(tile, sum, dim, [&](int64_t d, float g) { row.Set(d, step(row.Get(d), g)); });
    } else {
      UpdateColumns(tile, row, id * dim, sum, dim);
    }
  }

 private:
  // Calls body(column, sum of this lane's column) for all columns.
  template <class Sum, class Body>
  __device__ static void ForSums(const Tile& tile, const Sum& sum, int64_t dim, Body body) {
    ForColumns(tile, dim, [&](auto columns, int64_t column) {
      float sums[decltype(columns)::value];
      sum(tile, column, sums);
      for (int c = 0; c < decltype(columns)::value; ++c) {
        const int64_t d = column + tile.lane + c * tile.width;
        if (d < dim) body(d, sums[c]);
      }
    });
  }

  // Adds the mean square of the gradient to the row's slot and returns it to all lanes. The sums
  // are computed again for the step, which is cheaper than keeping wide rows.
  template <class Sum>
  __device__ float AdvanceRowSlot(const Tile& tile, int64_t id, const Sum& sum, int64_t dim) const {
    SquaresOfRow squares(dim);
    ForColumns(tile, dim, [&](auto columns, int64_t column) {
      float sums[decltype(columns)::value];
      sum(tile, column, sums);
      for (int c = 0; c < decltype(columns)::value; ++c) {
        squares.Add(tile, column + c * tile.width, sums[c]);
      }
    });
    const float mean = squares.Get(tile) / static_cast<float>(dim);
    float a = 0;
    if (tile.lane == 0) {
      a = rule.slots[0][id] + mean;
      rule.slots[0][id] = a;
    }
    return tile.Shuffle(a, 0);
  }

  template <class Row, class Sum>
  __device__ void UpdateColumns(const Tile& tile, const Row& row, int64_t first, const Sum& sum,
                                int64_t dim) const {
    float* const slot0 = rule.slots[0] + first;
    float* const slot1 = rule.slots[1] + first;
    if constexpr (kRule == UpdateRule::kSgd) {
      const SgdStep step(rule.hyper);
      ForSums(tile, sum, dim, [&](int64_t d, float g) { row.Set(d, step(row.Get(d), g)); });
    } else if constexpr (kRule == UpdateRule::kMomentum) {
      const MomentumStep step(rule.hyper);
      ForSums(tile, sum, dim,
              [&](int64_t d, float g) { row.Set(d, step(row.Get(d), g, slot0[d])); });
    } else if constexpr (kRule == UpdateRule::kAdagrad) {
      const AdagradStep step(rule.hyper);
      ForSums(tile, sum, dim,
              [&](int64_t d, float g) { row.Set(d, step(row.Get(d), g, slot0[d])); });
    } else if constexpr (kRule == UpdateRule::kLazyAdam) {
      const LazyAdamStep step(rule.hyper);
      ForSums(tile, sum, dim,
              [&](int64_t d, float g) { row.Set(d, step(row.Get(d), g, slot0[d], slot1[d])); });
    } else {
      static_assert(kRule == UpdateRule::kFtrl);
      const FtrlStep step(rule.hyper);
      const bool decays_only = step.DecaysOnly(), square_root = step.RootIsSquareRoot();
      ForSums(tile, sum, dim, [&](int64_t d, float g) {
        const float w = row.Get(d);
        row.Set(d, decays_only   ? w
                   : square_root ? step.template Step<true>(w, g, slot0[d], slot1[d])
                                 : step.template Step<false>(w, g, slot0[d], slot1[d]));
      });
    }
  }
};

}  // namespace twml::cuda

#endif  // TWML_CUDA_UPDATE_ROWS_H_
