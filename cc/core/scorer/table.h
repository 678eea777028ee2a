// Tables of rows in the formats of an export: float32, bfloat16, and int8 with a scale for each
// row.
#ifndef TWML_CORE_SCORER_TABLE_H_
#define TWML_CORE_SCORER_TABLE_H_

#include <cstdint>

#include "cc/core/scorer/array_file.h"
#include "cc/core/scorer/step.h"
#include "cc/core/scorer/step_reader.h"

namespace twml::scorer {

class Table {
 public:
  // Reads the arrays `table` and `scale` of a step.
  static Table Read(StepReader& reader);

  int64_t rows() const { return array_.shape()[0]; }
  int64_t dim() const { return array_.shape()[1]; }

  // out[0, dim) = the sum of values[k] * row ids[k] over k in [0, n), as SparseLinear computes it.
  // All values are 1 if `values` is null. Ids must be valid up to `readable` >= n.
  void Sum(const int64_t* ids, const float* values, int64_t n, int64_t readable, float* out,
           EntryMemory* memory) const;

  // Copies a row.
  void Copy(int64_t id, float* out) const;

  // Prefetches the first cache lines of a row.
  void Prefetch(int64_t id) const {
    const char* const row = static_cast<const char*>(data_) + id * row_bytes_;
    __builtin_prefetch(row);
    if (row_bytes_ > 64) __builtin_prefetch(row + 64);
  }

 private:
  void SumPiece(const int64_t* ids, const float* values, int64_t n, int64_t readable,
                float* out) const;

  ArrayFile array_, scale_;
  const void* data_ = nullptr;
  int64_t row_bytes_ = 0;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_TABLE_H_
