// The update of a table row with the sum of its gradient, by the formulas that CPUs use.
#ifndef TWML_CUDA_UPDATE_ROWS_H_
#define TWML_CUDA_UPDATE_ROWS_H_

#include <type_traits>

#include "cc/core/hash.h"
#include "cc/cuda/segment_sum.h"

namespace twml::cuda {

// The sum of squares of a row, in the order of the CPU's kernels with 16 lanes: 16 sums of every
// 16th column, added in order, and then the columns after the last multiple of 16.
template <int kVec>
class SquaresOfRow {
 public:
  __device__ explicit SquaresOfRow(int64_t dim) : dim_(dim), whole_(dim / kSums * kSums) {}

  // Adds the columns from `first` on, of which each lane has kVec. Call it for all columns in
  // order, by all lanes.
  __device__ void Add(const Tile& tile, int64_t first, const float (&g)[kVec]) {
    for (int from = 0; from < tile.width * kVec && first + from < dim_; from += kSums) {
      if (first + from < whole_) {
        const int owner = from / kVec + (tile.lane & (kOwners - 1));
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
          const float square = tile.Shuffle(g[c], owner);
          sums_[c] = MulAdd(square, square, sums_[c]);
        }
      } else {
        total_ = Total(tile);
        for (int64_t d = whole_; d < dim_; d += kVec) {
          const int owner = static_cast<int>(d - first) / kVec;
#pragma unroll
          for (int c = 0; c < kVec; ++c) {
            const float square = tile.Shuffle(g[c], owner);
            total_ = MulAdd(square, square, total_);
          }
        }
      }
    }
  }

  // The sum, once all columns were added. All lanes get it.
  __device__ float Get(const Tile& tile) const { return whole_ == dim_ ? Total(tile) : total_; }

 private:
  static constexpr int kSums = 16;
  static constexpr int kOwners = kSums / kVec;  // lanes that own 16 neighboring columns

  __device__ float Total(const Tile& tile) const {
    float total = 0;
    if (whole_ == 0) return total;
    for (int owner = 0; owner < kOwners; ++owner) {
#pragma unroll
      for (int c = 0; c < kVec; ++c) total += tile.Shuffle(sums_[c], owner);
    }
    return total;
  }

  const int64_t dim_, whole_;
  float sums_[kVec] = {};  // lane i has the sums kVec * (i % kOwners) and following
  float total_ = 0;        // of all columns, once the last ones were added
};

// Consumes the sums of the groups of a batch: group u is the gradient of row ids[u].
template <UpdateRule kRule, class W, int kVec>
struct UpdateRows {
  // Most groups have few entries: many of them at once hide the latency better than many entries.
  static constexpr int kAhead = 4, kBlocks = 5;

  const int64_t* ids;
  W* weights;
  int64_t table_rows;
  TwmlCudaRule rule;

  __device__ int64_t TargetRow(int64_t group) const { return ids[group]; }

  template <class Sum>
  __device__ void operator()(const Tile& tile, int64_t id, const Sum& sum, int64_t dim) const {
    if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(table_rows)) return;
    if constexpr (kRule == UpdateRule::kRowWiseAdagrad) {
      SquaresOfRow<kVec> squares(dim);
      if (dim > tile.width * kVec) {
        // The sums are computed again for the step, which is cheaper than keeping wide rows.
        for (int64_t first = 0; first < dim; first += tile.width * kVec) {
          float g[kVec];
          sum(tile, first + tile.lane * kVec, g);
          squares.Add(tile, first, g);
        }
        const RowWiseAdagradStep step = AdvanceRowSlot(tile, id, squares.Get(tile), dim);
        const auto advance = [&](float w, float g, float&, float&) { return step(w, g); };
        Update(tile, id, sum, dim, advance);
      } else {
        const int64_t column = tile.lane * kVec;
        Cells cells = Read(id, column, dim);
        float g[kVec];
        sum(tile, column, g);
        squares.Add(tile, 0, g);
        const RowWiseAdagradStep step = AdvanceRowSlot(tile, id, squares.Get(tile), dim);
        const auto advance = [&](float w, float g, float&, float&) { return step(w, g); };
        Write(cells, id, column, dim, g, advance);
      }
    } else if constexpr (kRule == UpdateRule::kSgd) {
      const SgdStep step(rule.hyper);
      const auto advance = [&](float w, float g, float&, float&) { return step(w, g); };
      Update(tile, id, sum, dim, advance);
    } else if constexpr (kRule == UpdateRule::kMomentum) {
      const MomentumStep step(rule.hyper);
      const auto advance = [&](float w, float g, float& m, float&) { return step(w, g, m); };
      Update(tile, id, sum, dim, advance);
    } else if constexpr (kRule == UpdateRule::kAdagrad) {
      const AdagradStep step(rule.hyper);
      const auto advance = [&](float w, float g, float& a, float&) { return step(w, g, a); };
      Update(tile, id, sum, dim, advance);
    } else if constexpr (kRule == UpdateRule::kLazyAdam) {
      Update(tile, id, sum, dim, LazyAdamStep(rule.hyper));
    } else {
      static_assert(kRule == UpdateRule::kFtrl);
      const FtrlStep step(rule.hyper);
      const bool decays_only = step.DecaysOnly(), square_root = step.RootIsSquareRoot();
      const auto advance = [&](float w, float g, float& a, float& z) {
        return decays_only   ? w
               : square_root ? step.template Step<true>(w, g, a, z)
                             : step.template Step<false>(w, g, a, z);
      };
      Update(tile, id, sum, dim, advance);
    }
  }

 private:
  // How many slots of the size of the table the rule has.
  static constexpr int kSlots =
      kRule == UpdateRule::kSgd || kRule == UpdateRule::kRowWiseAdagrad ? 0
      : kRule == UpdateRule::kMomentum || kRule == UpdateRule::kAdagrad ? 1
                                                                        : 2;

  // The weights and slots that a lane owns.
  struct Cells {
    Pack<W, kVec> w = {};
    Pack<float, kVec> slots[2] = {};
  };

  // Adds the mean square of the gradient to the row's slot.
  __device__ RowWiseAdagradStep AdvanceRowSlot(const Tile& tile, int64_t id, float squares,
                                               int64_t dim) const {
    float a = 0;
    if (tile.lane == 0) {
      a = rule.slots[0][id] + squares / static_cast<float>(dim);
      rule.slots[0][id] = a;
    }
    return RowWiseAdagradStep(rule.hyper, tile.Shuffle(a, 0));
  }

  __device__ Cells Read(int64_t id, int64_t column, int64_t dim) const {
    Cells cells;
    if (column >= dim) return cells;
    const int64_t at = id * dim + column;
    cells.w = Pack<W, kVec>::Load(weights + at);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      cells.slots[i] = Pack<float, kVec>::Load(rule.slots[i] + at);
    }
    return cells;
  }

  // Sets each weight to advance(weight, gradient, slot 0, slot 1), which changes the slots.
  template <class Advance>
  __device__ void Write(Cells& cells, int64_t id, int64_t column, int64_t dim,
                        const float (&g)[kVec], const Advance& advance) const {
    if (column >= dim) return;
    using Row = std::conditional_t<std::is_same_v<W, float>, Float32Row, Bfloat16Row>;
    uint32_t seed = 0;
    if constexpr (!std::is_same_v<W, float>) {
      seed = static_cast<uint32_t>(Mix64(rule.seed + Mix64(static_cast<uint64_t>(id))));
    }
    const Row row(cells.w.v, rule.hyper, seed, column);
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
      row.Set(c, advance(row.Get(c), g[c], cells.slots[0].v[c], cells.slots[1].v[c]));
    }
    const int64_t at = id * dim + column;
    cells.w.Store(weights + at);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) cells.slots[i].Store(rule.slots[i] + at);
  }

  // The same for all columns. What is read is on its way while the gradient is summed.
  template <class Sum, class Advance>
  __device__ void Update(const Tile& tile, int64_t id, const Sum& sum, int64_t dim,
                         const Advance& advance) const {
    for (int64_t first = 0; first < dim; first += tile.width * kVec) {
      const int64_t column = first + tile.lane * kVec;
      Cells cells = Read(id, column, dim);
      float g[kVec];
      sum(tile, column, g);
      Write(cells, id, column, dim, g, advance);
    }
  }
};

}  // namespace twml::cuda

#endif  // TWML_CUDA_UPDATE_ROWS_H_
