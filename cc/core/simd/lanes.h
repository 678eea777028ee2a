// Vectors of floats, and the sum of a block of columns. This header is included by files that are
// compiled once per SIMD level, and has the same restrictions (see row_kernels.cc).
#ifndef TWML_CORE_SIMD_LANES_H_
#define TWML_CORE_SIMD_LANES_H_

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_FMA)
#include <arm_neon.h>
#endif

#include "cc/core/simd/row_kernels.h"
#include "cc/core/simd/update_formulas.h"

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

typedef float Vec __attribute__((vector_size(kLanes * 4)));

// Not by a reference, in whose type clang drops the alignment.
typedef float VecInMemory __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
inline Vec VecAt(const float* p) { return *reinterpret_cast<const VecInMemory*>(p); }
inline void StoreVec(Vec v, float* p) { *reinterpret_cast<VecInMemory*>(p) = v; }

// Vectors of n lanes, for rows that are narrower than kLanes. They are copied to and from memory of
// any alignment: a template drops the attribute that Vec has for that.
template <int n>
struct Lanes {
  typedef float Floats __attribute__((vector_size(n * 4)));
  typedef uint16_t Halves __attribute__((vector_size(n * 2)));
  typedef uint32_t Words __attribute__((vector_size(n * 4)));
};

// MulAdd of each lane, by an intrinsic: compilers differ in which products and sums of vectors they
// fuse, and g++ does not fuse the same ones from version 13 on.
#define TWML_LANES_MUL_ADD(n, ...)                                                       \
  TWML_INLINE Lanes<n>::Floats MulAdd(Lanes<n>::Floats a, Lanes<n>::Floats b,            \
                                      Lanes<n>::Floats c) {                              \
    return __VA_ARGS__;                                                                  \
  }                                                                                      \
  TWML_INLINE Lanes<n>::Floats MulAdd(float a, Lanes<n>::Floats b, Lanes<n>::Floats c) { \
    return MulAdd(a - Lanes<n>::Floats{}, b, c);                                         \
  }
#if defined(__AVX512F__)
TWML_LANES_MUL_ADD(16, _mm512_fmadd_ps(a, b, c))
#endif
#if defined(__FMA__)
TWML_LANES_MUL_ADD(8, _mm256_fmadd_ps(a, b, c))
TWML_LANES_MUL_ADD(4, _mm_fmadd_ps(a, b, c))
#elif defined(__ARM_FEATURE_FMA)
TWML_LANES_MUL_ADD(4, vfmaq_f32(c, a, b))
#else
TWML_LANES_MUL_ADD(4, c + a * b)
#endif
#undef TWML_LANES_MUL_ADD

// Weights are loaded as floats for every storage type. A bfloat16 is the upper half of a float.
template <int n = kLanes>
inline typename Lanes<n>::Floats Load(const float* p) {
  typename Lanes<n>::Floats floats;
  __builtin_memcpy(&floats, p, sizeof(floats));
  return floats;
}
template <int n = kLanes>
inline typename Lanes<n>::Floats Load(const Bfloat16* p) {
  typename Lanes<n>::Halves halves;
  __builtin_memcpy(&halves, p, sizeof(halves));
  const typename Lanes<n>::Words wide = __builtin_convertvector(halves, typename Lanes<n>::Words)
                                        << 16;
  typename Lanes<n>::Floats floats;
  __builtin_memcpy(&floats, &wide, sizeof(floats));
  return floats;
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
// of 1.6). Narrow rows need few lines each, and little time, so more of them are prefetched ahead:
// with 16 columns that takes half the time.
template <int kBlock, bool kBinary, int kWidth = kLanes, class Id, class W>
__attribute__((always_inline)) inline void SumBlock(const W* table, int64_t dim,
                                                    int64_t last_offset, const Id* ids,
                                                    const float* values, int64_t n,
                                                    int64_t readable, float* out) {
  typedef typename Lanes<kWidth>::Floats V;
  constexpr int64_t kColumns = kBlock * kWidth, kLines = (kColumns * sizeof(W) + 63) / 64;
  constexpr int64_t kLinesAhead = 64, kRows = kLinesAhead / kLines;
  constexpr int64_t kAhead = kRows > kPrefetchAhead ? kRows : kPrefetchAhead;
  V sum[kBlock];
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) sum[i] = V{};
  for (int64_t k = 0; k < n; ++k) {
    if (k + kAhead < readable) PrefetchColumns<kColumns>(table + ids[k + kAhead] * dim);
    const W* row = table + ids[k] * dim;
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) {
      const V w = Load<kWidth>(row + (i == kBlock - 1 ? last_offset : i * kWidth));
      if constexpr (kBinary) {
        sum[i] += w;
      } else {
        sum[i] = MulAdd(values[k], w, sum[i]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) {
    __builtin_memcpy(out + (i == kBlock - 1 ? last_offset : i * kWidth), &sum[i], sizeof(V));
  }
}

}  // namespace
}  // namespace twml::TWML_SIMD_LEVEL

#endif  // TWML_CORE_SIMD_LANES_H_
