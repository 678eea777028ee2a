// Vectors of floats, and the sum of a block of columns. This header is included by files that are
// compiled once per SIMD level, and has the same restrictions (see row_kernels.cc).
#ifndef TWML_CORE_SIMD_LANES_H_
#define TWML_CORE_SIMD_LANES_H_

#include "cc/core/simd/row_kernels.h"
#include "cc/core/simd/update_steps.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kMaxBlock = 8;  // vectors of a row per pass
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kMaxBlock = 12;  // with 16, the sums do not stay in registers
#else
constexpr int kLanes = 4;
constexpr int kMaxBlock = 8;
#endif
constexpr int kPrefetchAhead = 12;

typedef float Vec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

typedef uint16_t Halves __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));

inline const Vec& VecAt(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline Vec& VecAt(float* p) { return *reinterpret_cast<Vec*>(p); }

// Weights are loaded as floats for every storage type. A bfloat16 is the upper half of a float.
inline Vec Load(const float* p) { return VecAt(p); }
inline Vec Load(const Bfloat16* p) {
  const Words wide = __builtin_convertvector(*reinterpret_cast<const Halves*>(p), Words) << 16;
  return reinterpret_cast<const Vec&>(wide);
}
// Prefetches the cache lines of n weights of a row, which may begin within a line.
template <int64_t n, class W>
__attribute__((always_inline)) inline void PrefetchColumns(const W* row) {
  constexpr int64_t kLine = 64 / sizeof(W);
#pragma GCC unroll 16
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(row + i);
  if (n % kLine != 0 || reinterpret_cast<uintptr_t>(row) % 64 != 0) __builtin_prefetch(row + n - 1);
}

// Sums one block of kBlock vectors of columns over all entries, in registers. The last vector may
// overlap the one before it (last_offset); this computes some sums twice instead of needing a
// masked tail. A pass prefetches only its own columns: if there are more outstanding lines than the
// CPU core has line fill buffers, the demand loads are delayed (with 400 columns by a factor
// of 1.6).
template <int kBlock, bool kBinary, class Id, class W>
__attribute__((always_inline)) inline void SumBlock(const W* table, int64_t dim,
                                                    int64_t last_offset, const Id* ids,
                                                    const float* values, int64_t n,
                                                    int64_t readable, float* out) {
  Vec sum[kBlock];
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) sum[i] = Vec{};
  for (int64_t k = 0; k < n; ++k) {
    if (k + kPrefetchAhead < readable) {
      PrefetchColumns<kBlock * kLanes>(table + ids[k + kPrefetchAhead] * dim);
    }
    const W* row = table + ids[k] * dim;
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) {
      const Vec w = Load(row + (i == kBlock - 1 ? last_offset : i * kLanes));
      if constexpr (kBinary) {
        sum[i] += w;
      } else {
        sum[i] += values[k] * w;
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i)
    VecAt(out + (i == kBlock - 1 ? last_offset : i * kLanes)) = sum[i];
}

}  // namespace
}  // namespace twml::TWML_SIMD_LEVEL

#endif  // TWML_CORE_SIMD_LANES_H_
