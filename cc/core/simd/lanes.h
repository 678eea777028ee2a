// Vectors of floats and the sum of a block of columns, for the kernels of one SIMD level. Included
// by files that are compiled once per level, and under their restrictions (see row_kernels.cc).
#ifndef TWML_CORE_SIMD_LANES_H_
#define TWML_CORE_SIMD_LANES_H_

#include "cc/core/simd/row_kernels.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kMaxBlock = 8;  // vectors of a row in a pass
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kMaxBlock = 12;  // with 16 the sums did not stay in registers
#else
constexpr int kLanes = 4;
constexpr int kMaxBlock = 8;
#endif
constexpr int kPrefetchAhead = 12;

typedef float Vec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

typedef uint16_t Halves __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));

inline const Vec& At(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline Vec& At(float* p) { return *reinterpret_cast<Vec*>(p); }

// Weights are read as floats, whatever they are stored as: a bfloat16 is a float's upper half.
inline Vec Load(const float* p) { return At(p); }
inline Vec Load(const Bfloat16* p) {
  const Words wide = __builtin_convertvector(*reinterpret_cast<const Halves*>(p), Words) << 16;
  return reinterpret_cast<const Vec&>(wide);
}
inline float ToFloat(float w) { return w; }
inline float ToFloat(Bfloat16 w) {
  const uint32_t bits = static_cast<uint32_t>(w.bits) << 16;
  float out;
  __builtin_memcpy(&out, &bits, sizeof(out));
  return out;
}

// Asks for the cache lines of n of a row's weights, wherever in a line they begin.
template <int64_t n, class W>
__attribute__((always_inline)) inline void PrefetchColumns(const W* row) {
  constexpr int64_t kLine = 64 / sizeof(W);
#pragma GCC unroll 16
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(row + i);
  if (n % kLine != 0 || reinterpret_cast<uintptr_t>(row) % 64 != 0) __builtin_prefetch(row + n - 1);
}

// One block of kBlock vectors of columns, summed in registers over all entries. The last vector
// may overlap the one before it (last_offset), which computes the same sums twice instead of
// needing a masked tail. A pass asks ahead for its own columns only: more lines at once than the
// core has buffers for hold up the loads that it waits for (400 columns took 1.6 times as long).
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
  for (int i = 0; i < kBlock; ++i) At(out + (i == kBlock - 1 ? last_offset : i * kLanes)) = sum[i];
}

}  // namespace
}  // namespace twml::TWML_SIMD_LEVEL

#endif  // TWML_CORE_SIMD_LANES_H_
