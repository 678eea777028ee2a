// Groups the entries of fields, whose ids are in ranges of their own, without sorting.
#ifndef TWML_CORE_GROUP_BY_FIELD_H_
#define TWML_CORE_GROUP_BY_FIELD_H_

#include <cstdint>

#include "cc/core/group_by_id.h"

namespace twml {

// The same result as GroupBatch. Entry k is one of field f = k mod F, and its id is in
// [field_starts[f], field_starts[f + 1]). The ids of a field that are present are found by flags in
// an array of its rows, and their entries are counted, so that nothing is sorted. Batches for which
// that would not be faster (with values, rows of other lengths than 1 or F, few entries for the
// size of the fields, or very large fields) are left to GroupBatch.
template <class Id>
Status GroupByField(const Csr<Id>& batch, Span<const int64_t> field_starts, int64_t input_dim,
                    const ParallelFor& parallel_for, GroupedBatch<Id>* grouped);

}  // namespace twml

#endif  // TWML_CORE_GROUP_BY_FIELD_H_
