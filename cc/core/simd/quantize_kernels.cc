// This file is compiled once per SIMD level and has the same restrictions as row_kernels.cc.
#include "cc/core/simd/quantize_kernels.h"

#include "cc/core/simd/update_formulas.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

constexpr int kLanes = 16;  // at every level, because the number determines the order of the sums

inline bool IsFinite(float x) { return x - x == 0; }
inline float Min(float a, float b) { return b < a ? b : a; }
inline float Max(float a, float b) { return a < b ? b : a; }

// The nearest code. The clamp comes between the product and the sum, which are rounded one by one.
inline int32_t Code(float x, const QuantizedGrid& grid) {
  const float at = (x - grid.offset) * grid.inverse;
  const float clamped = Min(Max(at, 0.0f), static_cast<float>(grid.levels));
  return static_cast<int32_t>(clamped + 0.5f);
}

// The product is exact: a float16 has 11 bits and a code has 8.
inline float Point(int32_t code, float offset, float scale) {
  return offset + scale * static_cast<float>(code);
}

RowRange Range(const float* row, int64_t n) {
  RowRange range = {row[0], row[0], true};
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    range.min = Min(range.min, row[i]);
    range.max = Max(range.max, row[i]);
    finite &= IsFinite(row[i]);
  }
  range.finite = finite;
  return range;
}

void Scale(const float* row, int64_t n, double factor, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(row[i] * factor);
}

// The square of a float is exact in double.
inline double SquaredDifference(float x, const QuantizedGrid& grid) {
  const float difference = x - Point(Code(x, grid), grid.offset, grid.scale);
  return static_cast<double>(difference) * static_cast<double>(difference);
}

double SquaredError(const float* row, int64_t n, const QuantizedGrid& grid) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += SquaredDifference(row[i + lane], grid);
  }
  for (int lane = 0; i + lane < n; ++lane) sums[lane] += SquaredDifference(row[i + lane], grid);
  double sum = 0;
  for (const double each : sums) sum += each;
  return sum;
}

void Encode(const float* row, int64_t n, const QuantizedGrid& grid, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(Code(row[i], grid));
}

// The highest point of a grid can be larger than the largest float.
inline float ToFloat(double x) {
  constexpr double kLargest = 0x1.fffffep127;
  const double low = x < -kLargest ? -kLargest : x;
  return static_cast<float>(low > kLargest ? kLargest : low);
}

void Decode(const uint8_t* codes, int64_t n, float offset, float scale, double factor, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = ToFloat(static_cast<double>(Point(codes[i], offset, scale)) * factor);
  }
}

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float FromBits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint32_t kSmallest = 0x0d800000;            // 2^-100
constexpr uint32_t kExactProducts = ~uint32_t{0x7f};  // without the last 7 bits of a float

// The scale of a row. The bits of floats without their sign are in the order of the floats, and
// before the bits of NaN. A scale has 17 significant bits, so that its products with the 7 bits of
// codes are exact.
float Int8Scale(const float* row, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = BitsOf(row[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  if (largest < kSmallest) return 0;
  if (largest >= kInfinity) return FromBits(largest);
  return FromBits(BitsOf(FromBits(largest) / 127) & kExactProducts);
}

// Writes the codes of a row that has no scale, or none that is finite: infinity times a code is the
// infinity with its sign, and NaN for a number that is finite.
void CodesWithoutGrid(const float* row, int64_t n, int8_t* codes) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = BitsOf(row[i]);
    codes[i] = (bits & 0x7fffffff) != kInfinity ? 0 : bits == kInfinity ? 1 : -1;
  }
}

// Adding this to a small float rounds it to an integer, to an even one in the middle of two.
constexpr float kToInteger = 12582912;  // 1.5 * 2^23

float ToInt8(const float* row, int64_t n, int8_t* codes) {
  const float scale = Int8Scale(row, n);
  if (scale == 0 || !IsFinite(scale)) {
    CodesWithoutGrid(row, n, codes);
    return scale;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float rounded = (row[i] / scale + kToInteger) - kToInteger;
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(rounded));
  }
  return scale;
}

// In units of 2^-16, a random number in [0, 1) is added and the sum is rounded down.
float ToInt8AtRandom(const float* row, int64_t n, uint32_t seed, int8_t* codes) {
  const float scale = Int8Scale(row, n);
  if (scale == 0 || !IsFinite(scale)) {
    CodesWithoutGrid(row, n, codes);
    return scale;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int32_t units = static_cast<int32_t>(row[i] / scale * 65536);
    const int32_t code = (units + static_cast<int32_t>(RandomBits(seed, i))) >> 16;
    const int32_t low = code < -127 ? -127 : code;
    codes[i] = static_cast<int8_t>(low > 127 ? 127 : low);
  }
  return scale;
}

void FromInt8(const int8_t* codes, int64_t n, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = scale * static_cast<float>(codes[i]);
}

}  // namespace

extern const QuantizeKernels kQuantizeKernels;
const QuantizeKernels kQuantizeKernels = {Range,  Scale,  SquaredError,   Encode,
                                          Decode, ToInt8, ToInt8AtRandom, FromInt8};

}  // namespace twml::TWML_SIMD_LEVEL
