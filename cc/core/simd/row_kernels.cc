// Compiled once per SIMD level (TWML_SIMD_LEVEL names the namespace). Nothing here may instantiate
// a template or inline function shared with other files: the linker would keep one copy of it,
// perhaps the one for a CPU we are not on. So: no standard library but C's mathematics.
#include <math.h>

#include "cc/core/simd.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kMaxBlock = 16;  // accumulators held in registers, in vectors
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kMaxBlock = 16;
#else
constexpr int kLanes = 4;
constexpr int kMaxBlock = 8;
#endif
constexpr int kPrefetchAhead = 12;

typedef float Vec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline const Vec& At(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline Vec& At(float* p) { return *reinterpret_cast<Vec*>(p); }

// One block of kBlock vectors of columns, summed in registers over all entries. The last vector
// may overlap the one before it (last_offset), which computes the same sums twice instead of
// needing a masked tail.
template <int kBlock, bool kBinary, class Id>
void SumBlock(const float* table, int64_t dim, int64_t last_offset, const Id* ids,
              const float* values, int64_t n, int64_t prefetchable, float* out) {
  Vec sum[kBlock];
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) sum[i] = Vec{};
  for (int64_t k = 0; k < n; ++k) {
    if (k + kPrefetchAhead < prefetchable) {
      PrefetchRow(table + ids[k + kPrefetchAhead] * static_cast<int64_t>(dim), dim);
    }
    const float* row = table + ids[k] * dim;
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) {
      const Vec& w = At(row + (i == kBlock - 1 ? last_offset : i * kLanes));
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

template <int kBlock, bool kBinary, class Id>
void SumBlockOf(int block, const float* table, int64_t dim, int64_t last_offset, const Id* ids,
                const float* values, int64_t n, int64_t prefetchable, float* out) {
  if constexpr (kBlock > 1) {
    if (block < kBlock) {
      return SumBlockOf<kBlock - 1, kBinary>(block, table, dim, last_offset, ids, values, n,
                                             prefetchable, out);
    }
  }
  SumBlock<kBlock, kBinary>(table, dim, last_offset, ids, values, n, prefetchable, out);
}

// Rows narrower than a vector.
template <bool kBinary, class Id>
void SumNarrow(const float* table, int64_t dim, const Id* ids, const float* values, int64_t n,
               int64_t readable, float* out) {
  float sum[kLanes] = {};
  for (int64_t k = 0; k < n; ++k) {
    if (k + kPrefetchAhead < readable) {
      __builtin_prefetch(table + ids[k + kPrefetchAhead] * dim);
    }
    const float* row = table + ids[k] * dim;
    const float value = kBinary ? 1.0f : values[k];
    for (int64_t i = 0; i < dim; ++i) sum[i] += value * row[i];
  }
  for (int64_t i = 0; i < dim; ++i) out[i] = sum[i];
}

// One column: a gather and a dot product. Independent sums hide the latency of the additions;
// their number is fixed, so the result is the same on every level.
template <bool kBinary, class Id>
void SumScalars(const float* table, const Id* ids, const float* values, int64_t n, int64_t readable,
                float* out) {
  constexpr int kSums = 8;
  float sum[kSums] = {};
  int64_t k = 0;
  for (; k + kSums <= n; k += kSums) {
    if (k + kSums * 4 < readable) {
      for (int i = 0; i < kSums; ++i) __builtin_prefetch(table + ids[k + kSums * 3 + i]);
    }
    for (int i = 0; i < kSums; ++i) {
      sum[i] += kBinary ? table[ids[k + i]] : values[k + i] * table[ids[k + i]];
    }
  }
  for (int i = 0; k < n; ++k, ++i) sum[i] += kBinary ? table[ids[k]] : values[k] * table[ids[k]];
  for (int i = 1; i < kSums; ++i) sum[0] += sum[i];
  out[0] = sum[0];
}

template <bool kBinary, class Id>
void SumRowsAs(const float* table, int64_t dim, const Id* ids, const float* values, int64_t n,
               int64_t readable, float* out) {
  if (dim == 1) return SumScalars<kBinary>(table, ids, values, n, readable, out);
  if (dim < kLanes) return SumNarrow<kBinary>(table, dim, ids, values, n, readable, out);
  const int64_t vectors = (dim + kLanes - 1) / kLanes;
  for (int64_t v = 0; v < vectors; v += kMaxBlock) {
    const bool last = v + kMaxBlock >= vectors;
    const int block = last ? static_cast<int>(vectors - v) : kMaxBlock;
    const int64_t column = v * kLanes;
    const int64_t last_offset = last ? dim - kLanes - column : (block - 1) * kLanes;
    const int64_t prefetchable = v == 0 ? readable : 0;  // later blocks find the rows in cache
    SumBlockOf<kMaxBlock, kBinary>(block, table + column, dim, last_offset, ids, values, n,
                                   prefetchable, out + column);
  }
}

template <class Id>
void SumRows(const float* table, int64_t dim, const Id* ids, const float* values, int64_t n,
             int64_t readable, float* out) {
  if (values == nullptr) {
    SumRowsAs<true>(table, dim, ids, values, n, readable, out);
  } else {
    SumRowsAs<false>(table, dim, ids, values, n, readable, out);
  }
}

template <class Id>
void DotRows(const float* table, int64_t dim, const Id* ids, const float* row, int64_t n,
             float* out) {
  for (int64_t k = 0; k < n; ++k) {
    if (k + kPrefetchAhead < n) PrefetchRow(table + ids[k + kPrefetchAhead] * dim, dim);
    const float* w = table + ids[k] * dim;
    Vec sums = {};
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) sums += At(w + i) * At(row + i);
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
    for (; i < dim; ++i) sum += w[i] * row[i];
    out[k] = sum;
  }
}

inline void Decay(float* w, int64_t n, const float* hyper) {
  if (hyper[1] == 0) return;
  for (int64_t i = 0; i < n; ++i) w[i] -= w[i] * hyper[1];
}

void Sgd(float* w, float* const*, const float* g, int64_t n, const float* hyper) {
  Decay(w, n, hyper);
  const float lr = hyper[0];
  for (int64_t i = 0; i < n; ++i) w[i] -= lr * g[i];
}

void Momentum(float* __restrict w, float* const* slots, const float* __restrict g, int64_t n,
              const float* hyper) {
  Decay(w, n, hyper);
  const float lr = hyper[0], mu = hyper[2];
  const bool nesterov = hyper[3] != 0;
  float* __restrict m = slots[0];
  for (int64_t i = 0; i < n; ++i) {
    m[i] = mu * m[i] - lr * g[i];
    w[i] += nesterov ? mu * m[i] - lr * g[i] : m[i];
  }
}

void Adagrad(float* __restrict w, float* const* slots, const float* __restrict g, int64_t n,
             const float* hyper) {
  Decay(w, n, hyper);
  const float lr = hyper[0], eps = hyper[2];
  float* __restrict a = slots[0];
  for (int64_t i = 0; i < n; ++i) {
    a[i] += g[i] * g[i];
    w[i] -= lr * g[i] / sqrtf(a[i] + eps);
  }
}

void RowWiseAdagrad(float* __restrict w, float* const* slots, const float* __restrict g, int64_t n,
                    const float* hyper) {
  Decay(w, n, hyper);
  float squares = 0;
  int64_t i = 0;
  if (n >= kLanes) {
    Vec sums = {};
    for (; i + kLanes <= n; i += kLanes) sums += At(g + i) * At(g + i);
    for (int lane = 0; lane < kLanes; ++lane) squares += sums[lane];
  }
  for (; i < n; ++i) squares += g[i] * g[i];
  slots[0][0] += squares / static_cast<float>(n);
  const float step = hyper[0] / sqrtf(slots[0][0] + hyper[2]);
  for (i = 0; i < n; ++i) w[i] -= step * g[i];
}

void LazyAdam(float* __restrict w, float* const* slots, const float* __restrict g, int64_t n,
              const float* hyper) {
  Decay(w, n, hyper);
  const float lr = hyper[0], b1 = 1 - hyper[2], b2 = 1 - hyper[3], eps = hyper[4];
  float* __restrict m = slots[0];
  float* __restrict v = slots[1];
  for (int64_t i = 0; i < n; ++i) {
    m[i] += (g[i] - m[i]) * b1;
    v[i] += (g[i] * g[i] - v[i]) * b2;
    w[i] -= lr * m[i] / (sqrtf(v[i]) + eps);
  }
}

void Ftrl(float* __restrict w, float* const* slots, const float* __restrict g, int64_t n,
          const float* hyper) {
  Decay(w, n, hyper);
  const float lr = hyper[0], power = -hyper[2], l1 = hyper[3], l2 = hyper[4], shrink = hyper[5];
  float* __restrict a = slots[0];
  float* __restrict z = slots[1];
  for (int64_t i = 0; i < n; ++i) {
    const float sum = a[i] + g[i] * g[i];
    const bool root = power == 0.5f;
    const float before = root ? sqrtf(a[i]) : powf(a[i], power);
    const float after = root ? sqrtf(sum) : powf(sum, power);
    z[i] += g[i] + 2 * shrink * w[i] - (after - before) / lr * w[i];
    const float clipped = z[i] > l1 ? l1 : z[i] < -l1 ? -l1 : z[i];
    w[i] = (clipped - z[i]) / (after / lr + 2 * l2);
    a[i] = sum;
  }
}

}  // namespace

#define TWML_STRING_OF(x) #x
#define TWML_STRING(x) TWML_STRING_OF(x)
extern const RowKernels kKernels;
const RowKernels kKernels = {
    TWML_STRING(TWML_SIMD_LEVEL),
    {SumRows<int32_t>, DotRows<int32_t>},
    {SumRows<int64_t>, DotRows<int64_t>},
    {Sgd, Momentum, Adagrad, RowWiseAdagrad, LazyAdam, Ftrl},
};

}  // namespace twml::TWML_SIMD_LEVEL
