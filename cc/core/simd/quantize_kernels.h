// Kernels for the quantization of rows, compiled once per SIMD level. Their results have the same
// bits at every level: sums have a fixed order, and every product that is followed by a sum is
// exact, so it does not matter whether the two are fused.
#ifndef TWML_CORE_SIMD_QUANTIZE_KERNELS_H_
#define TWML_CORE_SIMD_QUANTIZE_KERNELS_H_

#include <cstdint>

namespace twml {

// The grid offset + scale * code for codes in [0, levels]. Offset and scale are float16 numbers.
struct QuantizedGrid {
  float offset;
  float scale;    // positive
  float inverse;  // 1 / scale
  int levels;     // at most 255
};

struct RowRange {
  float min;
  float max;
  bool finite;  // whether all items are; min and max are meaningful only then
};

struct QuantizeKernels {
  // The smallest and the largest item of a row of n >= 1 items.
  RowRange (*range)(const float* row, int64_t n);
  // out[i] = factor * row[i]. The factor is a power of two, which may exceed the range of float.
  void (*scale)(const float* row, int64_t n, double factor, float* out);
  // The sum of squared differences between the items and their nearest points of the grid.
  double (*squared_error)(const float* row, int64_t n, const QuantizedGrid& grid);
  // The codes of the nearest points of the grid.
  void (*encode)(const float* row, int64_t n, const QuantizedGrid& grid, uint8_t* codes);
  // out[i] = factor * (offset + scale * codes[i]), or the largest float.
  void (*decode)(const uint8_t* codes, int64_t n, float offset, float scale, double factor,
                 float* out);
  // The scale and the codes of a row for RowsToInt8, rounded to the nearest code, or with the
  // random bits of a seed.
  float (*to_int8)(const float* row, int64_t n, int8_t* codes);
  float (*to_int8_at_random)(const float* row, int64_t n, uint32_t seed, int8_t* codes);
  // out[i] = scale * codes[i]
  void (*from_int8)(const int8_t* codes, int64_t n, float scale, float* out);
};

}  // namespace twml

#endif  // TWML_CORE_SIMD_QUANTIZE_KERNELS_H_
