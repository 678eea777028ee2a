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
inline float FloatOf(float w) { return w; }
inline float FloatOf(Bfloat16 w) {
  const uint32_t bits = static_cast<uint32_t>(w.bits) << 16;
  float out;
  __builtin_memcpy(&out, &bits, sizeof(out));
  return out;
}

// One block of kBlock vectors of columns, summed in registers over all entries. The last vector
// may overlap the one before it (last_offset), which computes the same sums twice instead of
// needing a masked tail.
template <int kBlock, bool kBinary, class Id, class W>
void SumBlock(const W* table, int64_t dim, int64_t last_offset, const Id* ids, const float* values,
              int64_t n, int64_t prefetchable, float* out) {
  Vec sum[kBlock];
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) sum[i] = Vec{};
  for (int64_t k = 0; k < n; ++k) {
    if (k + kPrefetchAhead < prefetchable) {
      PrefetchRow(table + ids[k + kPrefetchAhead] * static_cast<int64_t>(dim), dim);
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

template <int kBlock, bool kBinary, class Id, class W>
void SumBlockOf(int block, const W* table, int64_t dim, int64_t last_offset, const Id* ids,
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
template <bool kBinary, class Id, class W>
void SumNarrow(const W* table, int64_t dim, const Id* ids, const float* values, int64_t n,
               int64_t readable, float* out) {
  float sum[kLanes] = {};
  for (int64_t k = 0; k < n; ++k) {
    if (k + kPrefetchAhead < readable) {
      __builtin_prefetch(table + ids[k + kPrefetchAhead] * dim);
    }
    const W* row = table + ids[k] * dim;
    const float value = kBinary ? 1.0f : values[k];
    for (int64_t i = 0; i < dim; ++i) sum[i] += value * FloatOf(row[i]);
  }
  for (int64_t i = 0; i < dim; ++i) out[i] = sum[i];
}

// One column: a gather and a dot product. Independent sums hide the latency of the additions;
// their number is fixed, so the result is the same on every level.
template <bool kBinary, class Id, class W>
void SumScalars(const W* table, const Id* ids, const float* values, int64_t n, int64_t readable,
                float* out) {
  constexpr int kSums = 8;
  float sum[kSums] = {};
  int64_t k = 0;
  for (; k + kSums <= n; k += kSums) {
    if (k + kSums * 4 < readable) {
      for (int i = 0; i < kSums; ++i) __builtin_prefetch(table + ids[k + kSums * 3 + i]);
    }
    for (int i = 0; i < kSums; ++i) {
      const float w = FloatOf(table[ids[k + i]]);
      sum[i] += kBinary ? w : values[k + i] * w;
    }
  }
  for (int i = 0; k < n; ++k, ++i) {
    const float w = FloatOf(table[ids[k]]);
    sum[i] += kBinary ? w : values[k] * w;
  }
  for (int i = 1; i < kSums; ++i) sum[0] += sum[i];
  out[0] = sum[0];
}

template <bool kBinary, class Id, class W>
void SumRowsAs(const W* table, int64_t dim, const Id* ids, const float* values, int64_t n,
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

template <class Id, class W>
void SumRows(const W* table, int64_t dim, const Id* ids, const float* values, int64_t n,
             int64_t readable, float* out) {
  if (values == nullptr) {
    SumRowsAs<true>(table, dim, ids, values, n, readable, out);
  } else {
    SumRowsAs<false>(table, dim, ids, values, n, readable, out);
  }
}

template <class Id, class W>
void DotRows(const W* table, int64_t dim, const Id* ids, const float* row, int64_t n, float* out) {
  for (int64_t k = 0; k < n; ++k) {
    if (k + kPrefetchAhead < n) PrefetchRow(table + ids[k + kPrefetchAhead] * dim, dim);
    const W* w = table + ids[k] * dim;
    Vec sums = {};
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) sums += Load(w + i) * At(row + i);
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
    for (; i < dim; ++i) sum += FloatOf(w[i]) * row[i];
    out[k] = sum;
  }
}

// The weights of one row under an update: Get gives what decay left of a weight, Set stores it.
class Float32Row {
 public:
  Float32Row(float* w, const float* hyper, uint32_t) : w_(w), decay_(hyper[1]) {}
  float Get(int64_t i) const { return decay_ == 0 ? w_[i] : w_[i] - w_[i] * decay_; }
  void Set(int64_t i, float w) const { w_[i] = w; }

 private:
  float* __restrict w_;
  float decay_;
};

// Stored by stochastic rounding: up with the probability of the fraction cut off, so that steps
// smaller than a bfloat16's spacing still move the weights in the mean. The random bits are a hash
// (MurmurHash3's finalizer) of the row's seed and the column.
class Bfloat16Row {
 public:
  Bfloat16Row(Bfloat16* w, const float* hyper, uint32_t seed)
      : w_(w), decay_(hyper[1]), seed_(seed) {}
  float Get(int64_t i) const {
    const float w = FloatOf(w_[i]);
    return decay_ == 0 ? w : w - w * decay_;
  }
  void Set(int64_t i, float w) const {
    uint32_t random = seed_ + static_cast<uint32_t>(i) * 0x9e3779b9u;
    random = (random ^ random >> 16) * 0x85ebca6bu;
    random = (random ^ random >> 13) * 0xc2b2ae35u;
    uint32_t bits;
    __builtin_memcpy(&bits, &w, sizeof(bits));
    const uint32_t rounded = (bits + (random >> 16)) >> 16;
    w_[i].bits = static_cast<uint16_t>(w == w ? rounded : bits >> 16 | 0x40);
  }

 private:
  Bfloat16* __restrict w_;
  float decay_;
  uint32_t seed_;
};

#define TWML_UPDATE_RULE(Name)                                                     \
  template <class Row, class W>                                                    \
  void Name(W* weights, float* const* slots, const float* __restrict g, int64_t n, \
            const float* hyper, uint32_t seed)

TWML_UPDATE_RULE(Sgd) {
  (void)slots;
  const Row w(weights, hyper, seed);
  const float lr = hyper[0];
  for (int64_t i = 0; i < n; ++i) w.Set(i, w.Get(i) - lr * g[i]);
}

TWML_UPDATE_RULE(Momentum) {
  const Row w(weights, hyper, seed);
  const float lr = hyper[0], mu = hyper[2];
  const bool nesterov = hyper[3] != 0;
  float* __restrict m = slots[0];
  for (int64_t i = 0; i < n; ++i) {
    m[i] = mu * m[i] - lr * g[i];
    w.Set(i, w.Get(i) + (nesterov ? mu * m[i] - lr * g[i] : m[i]));
  }
}

TWML_UPDATE_RULE(Adagrad) {
  const Row w(weights, hyper, seed);
  const float lr = hyper[0], eps = hyper[2];
  float* __restrict a = slots[0];
  for (int64_t i = 0; i < n; ++i) {
    a[i] += g[i] * g[i];
    w.Set(i, w.Get(i) - lr * g[i] / sqrtf(a[i] + eps));
  }
}

TWML_UPDATE_RULE(RowWiseAdagrad) {
  const Row w(weights, hyper, seed);
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
  for (i = 0; i < n; ++i) w.Set(i, w.Get(i) - step * g[i]);
}

TWML_UPDATE_RULE(LazyAdam) {
  const Row w(weights, hyper, seed);
  const float lr = hyper[0], b1 = 1 - hyper[2], b2 = 1 - hyper[3], eps = hyper[4];
  float* __restrict m = slots[0];
  float* __restrict v = slots[1];
  for (int64_t i = 0; i < n; ++i) {
    m[i] += (g[i] - m[i]) * b1;
    v[i] += (g[i] * g[i] - v[i]) * b2;
    w.Set(i, w.Get(i) - lr * m[i] / (sqrtf(v[i]) + eps));
  }
}

TWML_UPDATE_RULE(Ftrl) {
  const Row w(weights, hyper, seed);
  const float lr = hyper[0], power = -hyper[2], l1 = hyper[3], l2 = hyper[4], shrink = hyper[5];
  float* __restrict a = slots[0];
  float* __restrict z = slots[1];
  for (int64_t i = 0; i < n; ++i) {
    const float wi = w.Get(i);
    const float sum = a[i] + g[i] * g[i];
    const bool root = power == 0.5f;
    const float before = root ? sqrtf(a[i]) : powf(a[i], power);
    const float after = root ? sqrtf(sum) : powf(sum, power);
    z[i] += g[i] + 2 * shrink * wi - (after - before) / lr * wi;
    const float clipped = z[i] > l1 ? l1 : z[i] < -l1 ? -l1 : z[i];
    w.Set(i, (clipped - z[i]) / (after / lr + 2 * l2));
    a[i] = sum;
  }
}

}  // namespace

#define TWML_STRING_OF(x) #x
#define TWML_STRING(x) TWML_STRING_OF(x)
#define TWML_TABLE(W, Row)                                                                      \
  {                                                                                             \
    {SumRows<int32_t, W>, DotRows<int32_t, W>}, {SumRows<int64_t, W>, DotRows<int64_t, W>}, {   \
      Sgd<Row, W>, Momentum<Row, W>, Adagrad<Row, W>, RowWiseAdagrad<Row, W>, LazyAdam<Row, W>, \
          Ftrl<Row, W>                                                                          \
    }                                                                                           \
  }
extern const RowKernels kKernels;
const RowKernels kKernels = {
    TWML_STRING(TWML_SIMD_LEVEL),
    TWML_TABLE(float, Float32Row),
    TWML_TABLE(Bfloat16, Bfloat16Row),
};

}  // namespace twml::TWML_SIMD_LEVEL
