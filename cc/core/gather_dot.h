// Dot products of gathered rows of a table with a vector for each example.
#ifndef TWML_CORE_GATHER_DOT_H_
#define TWML_CORE_GATHER_DOT_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/sparse_linear.h"
#include "cc/core/status.h"

namespace twml {

// out[b, c] = sum over k of table[positions[b, c], k] * vectors[b, k], in the order of k; 0 where
// the position is -1. `vectors` has a row for each row of `positions`, or one for all.
Status GatherDot(const Matrix<const float>& table, const Matrix<const int64_t>& positions,
                 const Matrix<const float>& vectors, const ParallelFor& parallel_for, float* out);

}  // namespace twml

#endif  // TWML_CORE_GATHER_DOT_H_
