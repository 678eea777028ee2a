// The inner loops over table rows, compiled once per SIMD level and chosen at run time.
#ifndef TWML_CORE_SIMD_ROW_KERNELS_H_
#define TWML_CORE_SIMD_ROW_KERNELS_H_

#include <cstdint>

#include "cc/core/update_rules.h"

namespace twml {

// The upper half of a float.
struct Bfloat16 {
  uint16_t bits;
};

template <class Id, class W>
struct IdKernels {
  // out[0, dim) = sum over k in [0, n) of values[k] * table[ids[k]], in the order of k; all
  // values 1 when null. ids (and values) may be read up to `readable` >= n, to prefetch.
  void (*sum_rows)(const W* table, int64_t dim, const Id* ids, const float* values, int64_t n,
                   int64_t readable, float* out);
  // out[k] = table[ids[k]] . row for k in [0, n). ids may be read up to `readable`, as above.
  void (*dot_rows)(const W* table, int64_t dim, const Id* ids, const float* row, int64_t n,
                   int64_t readable, float* out);
};

// Updates one row of a table and its slots with its gradient. hyper: see UpdateRule. seed: of the
// stochastic rounding of bfloat16 weights.
template <class W>
using UpdateRow = void (*)(W* weights, float* const* slots, const float* gradient, int64_t dim,
                           const float* hyper, uint32_t seed);

// Everything for tables whose weights are stored as W.
template <class W>
struct TableKernels {
  IdKernels<int32_t, W> int32;
  IdKernels<int64_t, W> int64;
  UpdateRow<W> update[kNumUpdateRules];

  template <class Id>
  const IdKernels<Id, W>& of() const {
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
  const TableKernels<W>& table() const {
    if constexpr (sizeof(W) == 4) {
      return float32;
    } else {
      return bfloat16;
    }
  }
};

// Of the best level of this CPU that is not above the one named in the environment variable
// TWML_OPS_SIMD, if that names one.
const RowKernels& Kernels();

// Whether TWML_OPS_SIMD is not set or names a level of this CPU (kMet), names a level that this CPU
// does not have, or has another value, which the core ignores. The Python module warns of the last
// two.
enum class SimdRequest { kMet, kNotOfThisCpu, kUnknown };
SimdRequest RequestedSimd();
constexpr const char* kSimdVariable = "TWML_OPS_SIMD";
constexpr const char* kSimdLevels[] = {"baseline", "avx2", "avx512"};  // ascending

// Asks for a row's cache lines, also where it begins within one. Always inlined: GCC takes a
// function that only prefetches for one without effects and drops the call.
template <class W>
__attribute__((always_inline)) inline void PrefetchRow(const W* row, int64_t dim) {
  constexpr uintptr_t kLine = 64;
  const auto begin = reinterpret_cast<uintptr_t>(row), end = begin + dim * sizeof(W);
  for (uintptr_t at = begin & ~(kLine - 1); at < end; at += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(at));
  }
}

}  // namespace twml

#endif  // TWML_CORE_SIMD_ROW_KERNELS_H_
