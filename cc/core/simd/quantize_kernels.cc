// This file is compiled once per SIMD level and has the same restrictions as row_kernels.cc.
#include "cc/core/simd/quantize_kernels.h"

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

}  // namespace

extern const QuantizeKernels kQuantizeKernels;
const QuantizeKernels kQuantizeKernels = {Range, Scale, SquaredError, Encode, Decode};

}  // namespace twml::TWML_SIMD_LEVEL
