// Groups entries by id with a stable sort. Backward passes and duplicate sums are built on it.
#ifndef TWML_CORE_GROUP_BY_ID_H_
#define TWML_CORE_GROUP_BY_ID_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/scratch.h"
#include "cc/core/span.h"

namespace twml {

// Group u holds the entries splits[u] to splits[u + 1] of rows and values, which all have the id
// ids[u]. The ids are strictly increasing, and the entries of an id keep their order, so sums over
// a group are reproducible. Row is int32 if the number of rows fits.
template <class Id, class Row>
struct Groups {
  Scratch<Id> ids;
  Scratch<int64_t> splits;  // [num_groups + 1]
  int64_t num_groups = 0;
  Scratch<Row> rows;
  Scratch<float> values;  // unused for a binary batch
};

// Groups entries by ids[k]. Entry k belongs to the row given by row_splits, or to row k if
// row_splits is empty. `values` has one item per entry, or is empty. Ids must be in [0, input_dim).
// Uses O(entries) memory.
template <class Id, class Row>
Groups<Id, Row> GroupById(Span<const Id> ids, Span<const float> values,
                          Span<const int64_t> row_splits, int64_t input_dim,
                          const ParallelFor& parallel_for);

}  // namespace twml

#endif  // TWML_CORE_GROUP_BY_ID_H_
