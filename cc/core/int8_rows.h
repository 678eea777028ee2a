// Rows of floats as 8-bit codes and one float32 scale for each row, as they are sent.
//
// Item i of a row is scale * code[i], code in [-127, 127]. The scale is the largest magnitude of
// the row divided by 127, rounded towards zero to 17 significant bits. The products are therefore
// exact. Zeros stay zeros.
//
// - Rounded to the nearest code, to an even one in the middle of two, an item differs by at most
//   half the scale.
// - Rounded at random, up with the probability of the fraction, an item differs by less than the
//   scale, and by 0 on average (up to 2^-16 of the scale).
//
// A row whose magnitudes are all less than 2^-100 becomes zeros, so that no result depends on
// whether a thread flushes denormals. In a row with a NaN all items become NaN. In a row with
// infinities these stay, and all other items become NaN.
#ifndef TWML_CORE_INT8_ROWS_H_
#define TWML_CORE_INT8_ROWS_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/sparse_linear.h"

namespace twml {

// Writes the codes, of the size of `rows`, and the scales [rows]. `seed` is of the random bits,
// which depend on it and the place in `rows` alone; null: items are rounded to the nearest code.
void RowsToInt8(const Matrix<const float>& rows, const uint64_t* seed,
                const ParallelFor& parallel_for, int8_t* codes, float* scales);

// The inverse of RowsToInt8: writes `out`, of the size of `codes`. Any codes and scales are
// allowed.
void RowsFromInt8(const Matrix<const int8_t>& codes, const float* scales,
                  const ParallelFor& parallel_for, float* out);

}  // namespace twml

#endif  // TWML_CORE_INT8_ROWS_H_
