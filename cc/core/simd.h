// The inner loops over table rows, compiled once per SIMD level and chosen at run time.
#ifndef TWML_CORE_SIMD_H_
#define TWML_CORE_SIMD_H_

#include <cstdint>

#include "cc/core/update_rules.h"

namespace twml {

template <class Id>
struct IdKernels {
  // out[0, dim) = sum over k in [0, n) of values[k] * table[ids[k]], in the order of k; all
  // values 1 when null. ids (and values) may be read up to `readable` >= n, to prefetch.
  void (*sum_rows)(const float* table, int64_t dim, const Id* ids, const float* values, int64_t n,
                   int64_t readable, float* out);
  // out[k] = table[ids[k]] . row
  void (*dot_rows)(const float* table, int64_t dim, const Id* ids, const float* row, int64_t n,
                   float* out);
};

// Updates one row of a table and its slots with its gradient. hyper: see UpdateRule.
using UpdateRow = void (*)(float* weights, float* const* slots, const float* gradient, int64_t dim,
                           const float* hyper);

struct RowKernels {
  const char* level;
  IdKernels<int32_t> int32;
  IdKernels<int64_t> int64;
  UpdateRow update[kNumUpdateRules];

  template <class Id>
  const IdKernels<Id>& of() const {
    if constexpr (sizeof(Id) == 4) {
      return int32;
    } else {
      return int64;
    }
  }
};

// The best level of this CPU, or the one the environment names in TWML_OPS_SIMD (baseline, avx2,
// avx512) if the CPU has it.
const RowKernels& Kernels();

// Asks for a row's cache lines. Always inlined: GCC takes a function that only prefetches for one
// without effects and drops the call.
__attribute__((always_inline)) inline void PrefetchRow(const float* row, int64_t dim) {
  constexpr int64_t kLineFloats = 16;
  for (int64_t i = 0; i < dim; i += kLineFloats) __builtin_prefetch(row + i);
}

}  // namespace twml

#endif  // TWML_CORE_SIMD_H_
