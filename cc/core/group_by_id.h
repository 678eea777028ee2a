// Groups entries by id with a stable sort. Backward passes, duplicate sums and the updates of
// running normalizations are built on it.
#ifndef TWML_CORE_GROUP_BY_ID_H_
#define TWML_CORE_GROUP_BY_ID_H_

#include <cstdint>
#include <limits>
#include <variant>

#include "cc/core/csr.h"
#include "cc/core/parallel.h"
#include "cc/core/scratch.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// Group u holds the entries splits[u] to splits[u + 1] of rows and values, which all have the id
// ids[u]. The ids are strictly increasing, and the entries of an id keep their order, so sums over
// a group are reproducible. Row is int32 if the number of rows fits.
template <class Id, class Row>
struct Groups {
  SharedScratch<Id> ids;
  SharedScratch<int64_t> splits;  // [num_groups + 1]
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

// Calls run(Row{}) with the type of row numbers that fits `num_rows` rows.
template <class Run>
void WithRowType(int64_t num_rows, Run run) {
  num_rows <= std::numeric_limits<int32_t>::max() ? run(int32_t{}) : run(int64_t{});
}

// The entries of a batch, or its ids alone, grouped by id.
template <class Id>
struct GroupedBatch {
  std::variant<Groups<Id, int32_t>, Groups<Id, int64_t>>
      groups;  // row numbers of 32 bits if they fit
  int64_t num_rows = 0;
  int64_t num_entries = 0;
  int64_t input_dim = 0;  // all ids are in [0, input_dim)
};

// Groups ids in [0, input_dim). Entry k is row k. Everything that needs the same ids grouped, with
// whatever values, can take this grouping and read its values in the order of the rows.
template <class Id>
Status GroupIds(Span<const Id> ids, int64_t input_dim, const ParallelFor& parallel_for,
                GroupedBatch<Id>* grouped);

// Groups the entries of a batch whose ids are in [0, input_dim). If `grouped_ids` is not null, it
// is the result of GroupIds for the ids of the batch, which are then not sorted again.
template <class Id>
Status GroupBatch(const Csr<Id>& batch, int64_t input_dim, const GroupedBatch<Id>* grouped_ids,
                  const ParallelFor& parallel_for, GroupedBatch<Id>* grouped);

// Groups the entries of a batch whose ids are sorted already: entry k has the id
// batch.ids[codes[k]]. The ids must be strictly increasing and in [0, input_dim), and each must
// have an entry.
template <class Id>
Status GroupCodedBatch(const Csr<Id>& batch, Span<const uint32_t> codes, int64_t input_dim,
                       const ParallelFor& parallel_for, GroupedBatch<Id>* grouped);

// Checks that `groups` can be the result of GroupIds for `ids`, and that the ids are in
// [0, input_dim).
template <class Id>
Status CheckGroupedIds(const GroupedBatch<Id>& groups, Span<const Id> ids, int64_t input_dim,
                       const ParallelFor& parallel_for);

}  // namespace twml

#endif  // TWML_CORE_GROUP_BY_ID_H_
