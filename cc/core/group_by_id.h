// Entries grouped by id, ascending and stable: what every backward pass and duplicate sum needs.
#ifndef TWML_CORE_GROUP_BY_ID_H_
#define TWML_CORE_GROUP_BY_ID_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/scratch.h"
#include "cc/core/span.h"

namespace twml {

// Group u holds the entries splits[u] .. splits[u + 1] of rows and values, all of ids[u]; the ids
// ascend and the entries of one id keep their order, so sums over a group are reproducible.
// Row: int32 where the rows can be counted with it.
template <class Id, class Row>
struct Groups {
  Scratch<Id> ids;
  Scratch<int64_t> splits;  // num_groups + 1
  int64_t num_groups = 0;
  Scratch<Row> rows;
  Scratch<float> values;  // unused for a binary batch
};

// Groups entries by ids[k]. Entry k belongs to the row that row_splits puts it in, or to row k
// where row_splits is empty. values: one an entry, or empty. Ids must be in [0, input_dim).
// Memory O(entries).
template <class Id, class Row>
Groups<Id, Row> GroupById(Span<const Id> ids, Span<const float> values,
                          Span<const int64_t> row_splits, int64_t input_dim,
                          const ParallelFor& parallel_for);

}  // namespace twml

#endif  // TWML_CORE_GROUP_BY_ID_H_
