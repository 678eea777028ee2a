// This file is compiled once per SIMD level, with the restrictions that row_kernels.cc describes.
#include "cc/core/simd/scoring_kernels.h"

#include <math.h>

#include "cc/core/simd/lanes.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

constexpr int kVectors = static_cast<int>(kPanel) / kLanes;  // of a panel
#if defined(__AVX512F__)
constexpr int kRowsAtOnce = 4, kPanelsAtOnce = 2;
#elif defined(__AVX2__)
constexpr int kRowsAtOnce = 2, kPanelsAtOnce = 1;  // more sums do not stay in registers
#else
constexpr int kRowsAtOnce = 1, kPanelsAtOnce = 1;
#endif

typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));

inline Vec Splat(float x) { return Vec{} + x; }

// The first n floats, followed by zeros.
inline Vec LoadFirst(const float* p, int64_t n) {
  if (n >= kLanes) return VecAt(p);
  float items[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) items[i] = p[i];
  return VecAt(items);
}

inline void StoreFirst(Vec v, float* p, int64_t n) {
  if (n >= kLanes) {
    StoreVec(v, p);
    return;
  }
  float items[kLanes];
  StoreVec(v, items);
  for (int64_t i = 0; i < n; ++i) p[i] = items[i];
}

inline Vec Select(Integers condition, Vec yes, Vec no) {
  return reinterpret_cast<Vec>((reinterpret_cast<Integers>(yes) & condition) |
                               (reinterpret_cast<Integers>(no) & ~condition));
}

// exp(x) with a relative error of about 1e-7: 2^n e^r with |r| <= log(2) / 2, and a polynomial of
// Cephes (S. Moshier) for e^r. Results below the smallest normal number are that number.
inline Vec Exp(Vec x) {
  constexpr float kLargest = 88.7228f, kSmallest = -87.3365f, kRound = 12582912.0f;
  const Vec limited = Select(x > kLargest, Splat(kLargest), x);
  const Vec inner = Select(limited < kSmallest, Splat(kSmallest), limited);
  const Vec n = MulAdd(1.44269504f, inner, Splat(kRound)) - kRound;
  const Vec r = MulAdd(2.12194440e-4f, n, MulAdd(-0.693359375f, n, inner));
  Vec p = MulAdd(1.9875691500e-4f, r, Splat(1.3981999507e-3f));
  p = MulAdd(p, r, Splat(8.3334519073e-3f));
  p = MulAdd(p, r, Splat(4.1665795894e-2f));
  p = MulAdd(p, r, Splat(1.6666665459e-1f));
  p = MulAdd(p, r, Splat(5.0000001201e-1f));
  p = MulAdd(p, r * r, r) + 1.0f;
  // 2^n in two factors, because 2^128 is no float.
  const Integers whole = __builtin_convertvector(n, Integers), half = whole >> 1;
  const Vec first = reinterpret_cast<Vec>((half + 127) << 23);
  const Vec second = reinterpret_cast<Vec>((whole - half + 127) << 23);
  const Vec y = p * first * second;
  const Vec finite = Select(x > kLargest, Splat(HUGE_VALF), y);
  return Select(x != x, x, finite);
}

inline Vec Sigmoid(Vec x) { return 1.0f / (1.0f + Exp(-x)); }

// tanh(x) with a relative error of about 1e-7, by the polynomial of the Cephes library.
inline Vec Tanh(Vec x) {
  const Vec magnitude =
      reinterpret_cast<Vec>(reinterpret_cast<Integers>(x) & static_cast<int32_t>(0x7fffffff));
  const Vec z = x * x;
  Vec p = MulAdd(-5.70498872745e-3f, z, Splat(2.06390887954e-2f));
  p = MulAdd(p, z, Splat(-5.37397155531e-2f));
  p = MulAdd(p, z, Splat(1.33314422036e-1f));
  p = MulAdd(p, z, Splat(-3.33332819422e-1f));
  p = MulAdd(p * z, x, x);
  const Vec large = 1.0f - 2.0f / (Exp(magnitude + magnitude) + 1.0f);
  const Vec y = Select(magnitude < 0.625f, p, Select(x < 0.0f, -large, large));
  return Select(x != x, x, y);
}

// Applies a function of the C library to each number.
template <class Function>
inline Vec Each(Vec x, Function function) {
  float items[kLanes];
  StoreVec(x, items);
  for (int i = 0; i < kLanes; ++i) items[i] = function(items[i]);
  return VecAt(items);
}

inline Vec Activate(Activation activation, Vec x) {
  switch (activation) {
    case Activation::kLinear:
      return x;
    case Activation::kRelu:
      return Select(x <= 0.0f, Vec{}, x);  // keeps a NaN
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kTanh:
      return Tanh(x);
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kExponential:
      return Exp(x);
    case Activation::kElu:
      return Each(x, [](float v) { return v > 0 ? v : expm1f(v); });
    case Activation::kGelu:
      return Each(x, [](float v) { return v * (0.5f * (1.0f + erff(v * 0.70710678f))); });
    case Activation::kSoftplus:
      return Each(x, [](float v) { return fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))); });
  }
  return x;
}

inline float AddLanes(Vec v) {
  float items[kLanes];
  StoreVec(v, items);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) items[i] += items[i + half];
  }
  return items[0];
}

// kRows rows times kPanels panels. Two sums for each of them, of the even and of the odd inputs,
// hide the latency of the additions.
template <int kRows, int kPanels>
__attribute__((always_inline)) inline void DenseBlock(const float* weights, int64_t in, int64_t out,
                                                      const float* bias, Activation activation,
                                                      const float* x, int64_t x_stride, float* y,
                                                      int64_t y_stride) {
  constexpr int kSums = kPanels * kVectors;
  Vec even[kRows][kSums], odd[kRows][kSums];
  for (int v = 0; v < kSums; ++v) {
    const Vec start = bias == nullptr ? Vec{} : LoadFirst(bias + v * kLanes, out - v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      even[r][v] = start;
      odd[r][v] = Vec{};
    }
  }
  const auto weights_of = [&](int v, int64_t k) __attribute__((always_inline)) {
    return weights + (v / kVectors * in + k) * kPanel + v % kVectors * kLanes;
  };
  int64_t k = 0;
  for (; k + 2 <= in; k += 2) {
    const float* const inputs = x + k;
#pragma GCC unroll 4
    for (int v = 0; v < kSums; ++v) {
      const Vec first = VecAt(weights_of(v, k)), second = VecAt(weights_of(v, k + 1));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        even[r][v] = MulAdd(inputs[r * x_stride], first, even[r][v]);
        odd[r][v] = MulAdd(inputs[r * x_stride + 1], second, odd[r][v]);
      }
    }
  }
  if (k < in) {
    for (int v = 0; v < kSums; ++v) {
      const Vec last = VecAt(weights_of(v, k));
      for (int r = 0; r < kRows; ++r) even[r][v] = MulAdd(x[r * x_stride + k], last, even[r][v]);
    }
  }
  for (int v = 0; v < kSums; ++v) {
    if (v * kLanes >= out) break;
    for (int r = 0; r < kRows; ++r) {
      const Vec result = Activate(activation, even[r][v] + odd[r][v]);
      StoreFirst(result, y + r * y_stride + v * kLanes, out - v * kLanes);
    }
  }
}

template <int kPanels>
void DensePanels(const float* weights, int64_t in, int64_t out, const float* bias,
                 Activation activation, const float* x, int64_t x_stride, int64_t rows, float* y,
                 int64_t y_stride) {
  int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
    DenseBlock<kRowsAtOnce, kPanels>(weights, in, out, bias, activation, x + r * x_stride, x_stride,
                                     y + r * y_stride, y_stride);
  }
  for (; r < rows; ++r) {
    DenseBlock<1, kPanels>(weights, in, out, bias, activation, x + r * x_stride, x_stride,
                           y + r * y_stride, y_stride);
  }
}

// Few columns: each output is a dot product.
void DenseNarrow(const PackedWeights& weights, const float* bias, Activation activation,
                 const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) {
  static_assert(kMaxNarrow <= kLanes);
  const int64_t in = weights.in;
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = x + r * x_stride;
    float sums[kLanes] = {};
    for (int64_t o = 0; o < weights.out; ++o) {
      const float* const column = weights.data + o * in;
      Vec even = {}, odd = {};
      int64_t k = 0;
      for (; k + 2 * kLanes <= in; k += 2 * kLanes) {
        even = MulAdd(VecAt(row + k), VecAt(column + k), even);
        odd = MulAdd(VecAt(row + k + kLanes), VecAt(column + k + kLanes), odd);
      }
      for (; k < in; k += kLanes) {
        even = MulAdd(LoadFirst(row + k, in - k), LoadFirst(column + k, in - k), even);
      }
      sums[o] = AddLanes(even + odd) + (bias == nullptr ? 0.0f : bias[o]);
    }
    StoreFirst(Activate(activation, VecAt(sums)), y + r * y_stride, weights.out);
  }
}

void Dense(const PackedWeights& weights, const float* bias, Activation activation, const float* x,
           int64_t x_stride, int64_t rows, float* y, int64_t y_stride) {
  const int64_t in = weights.in, out = weights.out;
  if (out <= kMaxNarrow) {
    return DenseNarrow(weights, bias, activation, x, x_stride, rows, y, y_stride);
  }
  int64_t column = 0;
  for (; column + (kPanelsAtOnce - 1) * kPanel < out; column += kPanelsAtOnce * kPanel) {
    DensePanels<kPanelsAtOnce>(weights.data + column * in, in, out - column,
                               bias == nullptr ? nullptr : bias + column, activation, x, x_stride,
                               rows, y + column, y_stride);
  }
  for (; column < out; column += kPanel) {
    DensePanels<1>(weights.data + column * in, in, out - column,
                   bias == nullptr ? nullptr : bias + column, activation, x, x_stride, rows,
                   y + column, y_stride);
  }
}

void ActivateAll(Activation activation, const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreFirst(Activate(activation, LoadFirst(x + i, n - i)), y + i, n - i);
  }
}

void PairProducts(const float* x, int64_t n, int64_t dim, float* scratch, float* out) {
  const int64_t stride = n + kPanel;
  for (int64_t d = 0; d < dim; ++d) {
    float* const row = scratch + d * stride;
    for (int64_t i = 0; i < n; ++i) row[i] = x[i * dim + d];
    for (int64_t i = n; i < stride; ++i) row[i] = 0.0f;
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; j += kLanes) {
      Vec sum = {};
      const float *a = x + i * dim, *const end = a + dim, *b = scratch + j;
      for (; a < end; ++a, b += stride) sum = MulAdd(*a, VecAt(b), sum);
      StoreFirst(sum, out + j - i - 1, n - j);
    }
    out += n - 1 - i;
  }
}

// Loads kLanes bytes as floats.
inline Vec LoadBytes(const int8_t* p) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes), aligned(1), may_alias));
  const Bytes& bytes = *reinterpret_cast<const Bytes*>(p);
  return __builtin_convertvector(__builtin_convertvector(bytes, Integers), Vec);
}

// Sums kVecs vectors of columns.
template <int kVecs>
__attribute__((always_inline)) inline void SumInt8Block(const int8_t* table, const float* scale,
                                                        int64_t dim, const int64_t* ids,
                                                        const float* values, int64_t n,
                                                        float* out) {
  constexpr int64_t kAhead = 12;
  Vec sums[kVecs] = {};
  for (int64_t k = 0; k < n; ++k) {
    if (k + kAhead < n) {
      __builtin_prefetch(table + ids[k + kAhead] * dim);
      __builtin_prefetch(scale + ids[k + kAhead]);
    }
    const int8_t* const row = table + ids[k] * dim;
    const float factor = values == nullptr ? scale[ids[k]] : values[k] * scale[ids[k]];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      sums[v] = MulAdd(factor, LoadBytes(row + v * kLanes), sums[v]);
    }
  }
  for (int v = 0; v < kVecs; ++v) StoreVec(sums[v], out + v * kLanes);
}

// Rows that are narrower than a vector.
void SumInt8Narrow(const int8_t* table, const float* scale, int64_t dim, int64_t width,
                   const int64_t* ids, const float* values, int64_t n, float* out) {
  float sums[kLanes] = {};
  if (width == 1) {  // independent sums hide the latency of the additions
    const auto add = [&](int64_t k, float sum) __attribute__((always_inline)) {
      const float factor = values == nullptr ? scale[ids[k]] : values[k] * scale[ids[k]];
      return MulAdd(factor, static_cast<float>(table[ids[k] * dim]), sum);
    };
    int64_t k = 0;
    for (; k + 4 <= n; k += 4) {
      for (int i = 0; i < 4; ++i) sums[i] = add(k + i, sums[i]);
    }
    for (int i = 0; k + i < n; ++i) sums[i] = add(k + i, sums[i]);
    out[0] = sums[0] + sums[1] + sums[2] + sums[3];
    return;
  }
  for (int64_t k = 0; k < n; ++k) {
    const int8_t* const row = table + ids[k] * dim;
    const float factor = values == nullptr ? scale[ids[k]] : values[k] * scale[ids[k]];
    for (int64_t i = 0; i < width; ++i) {
      sums[i] = MulAdd(factor, static_cast<float>(row[i]), sums[i]);
    }
  }
  for (int64_t i = 0; i < width; ++i) out[i] = sums[i];
}

void SumInt8Rows(const int8_t* table, const float* scale, int64_t dim, const int64_t* ids,
                 const float* values, int64_t n, float* out) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes) {
    SumInt8Block<4>(table + d, scale, dim, ids, values, n, out + d);
  }
  if (d + 2 * kLanes <= dim) {
    SumInt8Block<2>(table + d, scale, dim, ids, values, n, out + d);
    d += 2 * kLanes;
  }
  if (d + kLanes <= dim) {
    SumInt8Block<1>(table + d, scale, dim, ids, values, n, out + d);
    d += kLanes;
  }
  if (d < dim) SumInt8Narrow(table + d, scale, dim, dim - d, ids, values, n, out + d);
}

// Returns the factor of the codes of a row, and adds what its items begin with to `offsets`.
inline float AddOffset(const uint8_t* row, float value, float* offsets) {
  float scale, offset;
  __builtin_memcpy(&scale, row, sizeof(scale));
  __builtin_memcpy(&offset, row + sizeof(scale), sizeof(offset));
  *offsets = MulAdd(value, offset, *offsets);
  return value * scale;
}

// Loads kLanes codes of 8 bits as integers.
inline Integers LoadCodes(const uint8_t* p) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes), aligned(1), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Bytes*>(p), Integers);
}

// Sums kVecs vectors of bytes that begin at `at` in the codes. Of 4 bits, `out` gets the sums of
// the low halves and `high` the sums of the high ones.
template <int kBits, int kVecs>
__attribute__((always_inline)) inline void SumCodesBlock(const uint8_t* rows, int64_t row_bytes,
                                                         int64_t at, const int64_t* ids,
                                                         const float* values, int64_t n, float* out,
                                                         float* high) {
  constexpr int64_t kAhead = 12;
  Vec sums[kVecs] = {}, high_sums[kVecs] = {};
  float offsets = 0;
  for (int64_t k = 0; k < n; ++k) {
    if (k + kAhead < n) {
      const uint8_t* const next = rows + ids[k + kAhead] * row_bytes;
      __builtin_prefetch(next);
      __builtin_prefetch(next + row_bytes - 1);
    }
    const uint8_t* const row = rows + ids[k] * row_bytes;
    const float value = values == nullptr ? 1.0f : values[k];
    const float factor = AddOffset(row, value, &offsets);
    const uint8_t* const codes = row + kQuantizedRowHead + at;
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const Integers loaded = LoadCodes(codes + v * kLanes);
      if (kBits == 8) {
        sums[v] = MulAdd(factor, __builtin_convertvector(loaded, Vec), sums[v]);
      } else {
        sums[v] = MulAdd(factor, __builtin_convertvector(loaded & 15, Vec), sums[v]);
        high_sums[v] = MulAdd(factor, __builtin_convertvector(loaded >> 4, Vec), high_sums[v]);
      }
    }
  }
  for (int v = 0; v < kVecs; ++v) {
    StoreVec(sums[v] + offsets, out + v * kLanes);
    if (kBits == 4) StoreVec(high_sums[v] + offsets, high + v * kLanes);
  }
}

// The same for `width` bytes, fewer than a vector. More than half of one are the last lanes of a
// vector that begins before them, if the row does.
template <int kBits>
void SumCodesNarrow(const uint8_t* rows, int64_t row_bytes, int64_t at, int64_t width,
                    const int64_t* ids, const float* values, int64_t n, float* out, float* high) {
  float sums[kLanes] = {}, high_sums[kLanes] = {};
  const int64_t before = kLanes - width;
  if (before < width && before <= kQuantizedRowHead + at) {
    SumCodesBlock<kBits, 1>(rows, row_bytes, at - before, ids, values, n, sums, high_sums);
    for (int64_t i = 0; i < width; ++i) out[i] = sums[before + i];
    for (int64_t i = 0; kBits == 4 && i < width; ++i) high[i] = high_sums[before + i];
    return;
  }
  float offsets = 0;
  for (int64_t k = 0; k < n; ++k) {
    const uint8_t* const row = rows + ids[k] * row_bytes;
    const float value = values == nullptr ? 1.0f : values[k];
    const float factor = AddOffset(row, value, &offsets);
    const uint8_t* const codes = row + kQuantizedRowHead + at;
    for (int64_t i = 0; i < width; ++i) {
      const float low = static_cast<float>(kBits == 8 ? codes[i] : codes[i] & 15);
      sums[i] = MulAdd(factor, low, sums[i]);
      if (kBits == 4) {
        high_sums[i] = MulAdd(factor, static_cast<float>(codes[i] >> 4), high_sums[i]);
      }
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    out[i] = sums[i] + offsets;
    if (kBits == 4) high[i] = high_sums[i] + offsets;
  }
}

template <int kBits>
void SumQuantizedRows(const uint8_t* rows, int64_t dim, const int64_t* ids, const float* values,
                      int64_t n, float* out) {
  const int64_t row_bytes = QuantizedRowBytes(dim, kBits);
  // With an odd number of items, the last byte has no second code.
  const int64_t half = (dim + 1) / 2, bytes = kBits == 8 ? dim : dim / 2;
  float* const high = out + half;
  int64_t d = 0;
  for (; d + 4 * kLanes <= bytes; d += 4 * kLanes) {
    SumCodesBlock<kBits, 4>(rows, row_bytes, d, ids, values, n, out + d, high + d);
  }
  if (d + 2 * kLanes <= bytes) {
    SumCodesBlock<kBits, 2>(rows, row_bytes, d, ids, values, n, out + d, high + d);
    d += 2 * kLanes;
  }
  if (d + kLanes <= bytes) {
    SumCodesBlock<kBits, 1>(rows, row_bytes, d, ids, values, n, out + d, high + d);
    d += kLanes;
  }
  if (d < bytes) {
    SumCodesNarrow<kBits>(rows, row_bytes, d, bytes - d, ids, values, n, out + d, high + d);
  }
  if (kBits == 4 && bytes < half) {
    float unused[kLanes];
    SumCodesNarrow<kBits>(rows, row_bytes, bytes, 1, ids, values, n, out + bytes, unused);
  }
}

bool Normalize(const IdNormalization* states, const int64_t* ids, const float* values, int64_t n,
               float* y) {
  constexpr float kLargest = 3.40282347e38f;
  Integers invalid = {};
  for (int64_t k = 0; k < n; k += kLanes) {
    const int64_t count = n - k < kLanes ? n - k : kLanes;
    float max_abs[kLanes], bias[kLanes];
    for (int i = 0; i < kLanes; ++i) max_abs[i] = 1.0f;
    for (int i = 0; i < kLanes; ++i) bias[i] = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
      const IdNormalization& state = states[ids[k + i]];
      max_abs[i] = state.max_abs;
      bias[i] = state.bias;
    }
    const Vec v = values == nullptr ? Splat(1.0f) : LoadFirst(values + k, count);
    const Integers bad = ~((v <= kLargest) & (v >= -kLargest));
    const Vec quotient = v / VecAt(max_abs);
    const Vec below = Select(quotient > 1.0f, Splat(1.0f), quotient);
    const Vec clipped = Select(below < -1.0f, Splat(-1.0f), below);
    StoreFirst(Select(bad, Vec{}, clipped) + VecAt(bias), y + k, count);
    invalid |= bad;
  }
  bool finite = true;
  for (int i = 0; i < kLanes; ++i) finite &= invalid[i] == 0;
  return finite;
}

void LeavesLeft(const float* columns, const TreeCondition* conditions, int64_t n,
                uint32_t* leaves) {
  constexpr int kAtOnce = 4;
  static_assert(kTreeRows % (kAtOnce * kLanes) == 0);
  for (int64_t first = 0; first < kTreeRows; first += kAtOnce * kLanes) {
    Integers left[kAtOnce];
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v) left[v] = ~Integers{};
    for (int64_t k = 0; k < n; ++k) {
      const TreeCondition& condition = conditions[k];
      const float* const numbers = columns + condition.column * kTreeRows + first;
      const int32_t kept = static_cast<int32_t>(condition.if_right);
      if (condition.missing_left) {  // a NaN is not larger
#pragma GCC unroll 4
        for (int v = 0; v < kAtOnce; ++v) {
          left[v] &= ~(VecAt(numbers + v * kLanes) > condition.threshold) | kept;
        }
      } else {
#pragma GCC unroll 4
        for (int v = 0; v < kAtOnce; ++v) {
          left[v] &= (VecAt(numbers + v * kLanes) <= condition.threshold) | kept;
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v) {
      __builtin_memcpy(leaves + first + v * kLanes, &left[v], sizeof(left[v]));
    }
  }
}

}  // namespace

extern const ScoringKernels kScoringKernels;
const ScoringKernels kScoringKernels = {
    Dense,     ActivateAll, PairProducts, SumInt8Rows, {SumQuantizedRows<8>, SumQuantizedRows<4>},
    Normalize, LeavesLeft};

}  // namespace twml::TWML_SIMD_LEVEL
