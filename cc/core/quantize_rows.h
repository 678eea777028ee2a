// Quantization of the rows of a matrix to 8, 4, 3 or 2 bits an item.
//
// A row becomes the nearest points of a grid 2^exponent * (offset + scale * code), code in [0,
// 2^bits - 1]. Offset and scale are float16 numbers. The grid covers a part [low, high] of the
// row's range, found by the greedy search of Check-N-Run (Eisenman et al., NSDI 2022): it begins
// with the whole range, cuts one bin off the end where this costs less, and so on, and keeps the
// grid with the least squared error. Items outside of the grid become its nearest end.
//
// The root mean squared error of a row is at most max((max - min) / (2^bits - 1), m / 2048), m
// being the largest magnitude in the row, or 2^-126 if that is larger. The second term matters only
// to rows whose range is below the precision of a float16 offset. The search never makes the error
// larger than that of the whole range. These rows are exact: rows of one repeated number (of a row
// of zeros with both signs all get the sign of one of them), and rows with a NaN or an infinity,
// which are stored as they are.
#ifndef TWML_CORE_QUANTIZE_ROWS_H_
#define TWML_CORE_QUANTIZE_ROWS_H_

#include <cstdint>
#include <functional>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/sparse_linear.h"
#include "cc/core/status.h"

namespace twml {

struct QuantizeOptions {
  int bits = 8;        // 8, 4, 3 or 2
  int bins = 32;       // parts into which the search divides the range, in [0, 4096]; 0: no search
  float ratio = 0.5f;  // the part of the range that the search may cut off, in [0, 1]
};

// Allocates the output of a call, or returns null, upon which the call ends without an error.
using AllocateBytes = std::function<uint8_t*(int64_t bytes)>;
using AllocateMatrix = std::function<float*(int64_t rows, int64_t cols)>;

// Writes the quantized rows to the bytes that it allocates. They do not depend on the threads, the
// SIMD level or the byte order of the CPU's family (little-endian only).
Status QuantizeRows(const Matrix<const float>& rows, const QuantizeOptions& options,
                    const ParallelFor& parallel_for, const AllocateBytes& allocate);

// The inverse of QuantizeRows. Bytes that QuantizeRows did not write are an error or make any
// numbers.
Status DequantizeRows(Span<const uint8_t> quantized, const ParallelFor& parallel_for,
                      const AllocateMatrix& allocate);

// Writes rows of the form that ScoringKernels::sum_quantized_rows reads, QuantizedRowBytes each,
// with the same grids: `bits` is 8 or 4, and the items of a row must be finite.
Status QuantizeToRows(const Matrix<const float>& rows, const QuantizeOptions& options,
                      const ParallelFor& parallel_for, uint8_t* out);

}  // namespace twml

#endif  // TWML_CORE_QUANTIZE_ROWS_H_
