// Matrices in the order in which the kernel of a dense layer reads them, and softmax.
#ifndef TWML_CORE_SCORER_PACKED_MATRIX_H_
#define TWML_CORE_SCORER_PACKED_MATRIX_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/simd/scoring_kernels.h"

namespace twml::scorer {

// The number of floats of a packed matrix [rows, columns]; see PackedWeights.
inline int64_t PackedSize(int64_t rows, int64_t columns) {
  if (columns <= kMaxNarrow) return rows * columns;
  return (columns + kPanel - 1) / kPanel * kPanel * rows;
}

// Packs the matrix whose item (i, j) is matrix[i * row_stride + j * column_stride].
inline PackedWeights PackMatrix(const float* matrix, int64_t rows, int64_t row_stride,
                                int64_t columns, int64_t column_stride, float* packed) {
  if (columns <= kMaxNarrow) {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        packed[j * rows + i] = matrix[i * row_stride + j * column_stride];
      }
    }
    return {packed, rows, columns};
  }
  if (rows == 0) return {packed, rows, columns};  // whatever the number of columns
  float* to = packed;
  for (int64_t first = 0; first < columns; first += kPanel) {
    const int64_t width = std::min(kPanel, columns - first);
    for (int64_t i = 0; i < rows; ++i, to += kPanel) {
      const float* const from = matrix + i * row_stride + first * column_stride;
      for (int64_t j = 0; j < width; ++j) to[j] = from[j * column_stride];
      std::fill(to + width, to + kPanel, 0.0f);
    }
  }
  return {packed, rows, columns};
}

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_PACKED_MATRIX_H_
