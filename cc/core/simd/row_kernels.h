// Kernels for table rows, compiled once per SIMD level: weighted sums of rows, dot products with
// rows, and the update of one row.
#ifndef TWML_CORE_SIMD_ROW_KERNELS_H_
#define TWML_CORE_SIMD_ROW_KERNELS_H_

#include <cstdint>

#include "cc/core/bfloat16.h"
#include "cc/core/update_rules.h"

namespace twml {

// Segment s has the entries splits[s] to splits[s + 1]. out[s] [dim] = sum over its entries k of
// values[k] * table[ids[k]], in the order of k. All values are 1 if `values` is null.
template <class Id, class W>
struct SegmentSums {
  const W* table;
  int64_t dim;
  const int64_t* splits;
  const Id* ids;
  const float* values;
  int64_t num_entries;  // of all segments; the kernel may read so many ids in order to prefetch
  float* out;
};

template <class Id, class W>
struct IdKernels {
  // out[0, dim) = sum over k in [0, n) of values[k] * table[ids[k]], in the order of k. All values
  // are 1 if `values` is null. The kernel may read ids (and values) up to `readable` >= n in order
  // to prefetch.
  void (*sum_rows)(const W* table, int64_t dim, const Id* ids, const float* values, int64_t n,
                   int64_t readable, float* out);
  // Computes the sums of the segments [begin, end).
  void (*sum_segments)(const SegmentSums<Id, W>& sums, int64_t begin, int64_t end);
  // The same if segment s has the entry s alone and all values are 1. `splits` is not read.
  void (*gather_rows)(const SegmentSums<Id, W>& sums, int64_t begin, int64_t end);
  // out[k] = table[ids[k]] . row for k in [0, n). The kernel may read ids up to `readable`, as
  // above.
  void (*dot_rows)(const W* table, int64_t dim, const Id* ids, const float* row, int64_t n,
                   int64_t readable, float* out);
};

// Updates one row of a table and its slots with the row's gradient. `hyper` is described at
// UpdateRule. `seed` is used by the stochastic rounding of bfloat16 weights.
template <class W>
using UpdateRow = void (*)(W* weights, float* const* slots, const float* gradient, int64_t dim,
                           const float* hyper, uint32_t seed);

// The kernels for tables whose weights are stored as W.
template <class W>
struct TableKernels {
  IdKernels<int32_t, W> int32;
  IdKernels<int64_t, W> int64;
  UpdateRow<W> update[kNumUpdateRules];

  template <class Id>
  const IdKernels<Id, W>& ForIds() const {
    if constexpr (sizeof(Id) == 4) {
      return int32;
    } else {
      return int64;
    }
  }
};

struct RowKernels {
  const char* level;
  TableKernels<float> float32;
  TableKernels<Bfloat16> bfloat16;

  template <class W>
  const TableKernels<W>& ForWeights() const {
    if constexpr (sizeof(W) == 4) {
      return float32;
    } else {
      return bfloat16;
    }
  }
};

}  // namespace twml

#endif  // TWML_CORE_SIMD_ROW_KERNELS_H_
