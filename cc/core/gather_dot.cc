#include "cc/core/gather_dot.h"

#include <algorithm>

#include "cc/core/first_position.h"

namespace twml {
namespace {

constexpr int64_t kAhead = 8;  // positions whose rows are prefetched

}  // namespace

Status GatherDot(const Matrix<const float>& table, const Matrix<const int64_t>& positions,
                 const Matrix<const float>& vectors, const ParallelFor& parallel_for, float* out) {
  if (vectors.dim != table.dim) {
    return Invalid("vectors must have ", table.dim, " columns, as the table, got ", vectors.dim);
  }
  if (vectors.rows != 1 && vectors.rows != positions.rows) {
    return Invalid("vectors must have 1 row or ", positions.rows, ", as positions, got ",
                   vectors.rows);
  }
  const int64_t columns = positions.dim, total = positions.rows * columns;
  const int64_t* const at = positions.data;
  FirstPosition bad;
  parallel_for(positions.rows, columns * (5 + table.dim), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const float* const vector = vectors.data + (vectors.rows == 1 ? 0 : b * vectors.dim);
      for (int64_t i = b * columns; i < (b + 1) * columns; ++i) {
        const int64_t later = at[std::min(i + kAhead, total - 1)];
        if (later >= 0 && later < table.rows) {
          __builtin_prefetch(table.data + later * table.dim);
        }
        float sum = 0.0f;
        if (at[i] >= 0 && at[i] < table.rows) {
          const float* const row = table.data + at[i] * table.dim;
          for (int64_t k = 0; k < table.dim; ++k) sum += row[k] * vector[k];
        } else if (at[i] != -1) {
          bad.Record(i);
        }
        out[i] = sum;
      }
    }
  });
  if (!bad.found()) return Status();
  const int64_t i = bad.value();
  return Invalid("positions[", i / columns, ", ", i % columns, "] = ", at[i],
                 " is out of range [-1, ", table.rows, ")");
}

}  // namespace twml
