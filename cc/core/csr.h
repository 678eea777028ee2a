// A batch of sparse rows in CSR form, and the validation that every kernel does first.
#ifndef TWML_CORE_CSR_H_
#define TWML_CORE_CSR_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// Row b holds the entries row_splits[b] to row_splits[b + 1]. In a binary batch all values are 1
// and `values` is empty.
template <class Id>
struct Csr {
  Span<const Id> ids;
  Span<const float> values;
  Span<const int64_t> row_splits;
  bool binary = false;

  int64_t num_rows() const { return row_splits.size() - 1; }
  int64_t num_entries() const { return ids.size(); }
};

// Checks that row_splits starts at 0, is non-decreasing and ends at num_entries.
Status CheckRowSplits(Span<const int64_t> row_splits, int64_t num_entries);

// Whether every id is in [0, input_dim).
template <class Id>
bool IdsInRange(Span<const Id> ids, int64_t input_dim);

// Checks that every id is in [0, input_dim). The message names the first one that is not.
template <class Id>
Status CheckIds(Span<const Id> ids, int64_t input_dim, const ParallelFor& parallel_for);

// Checks that the sizes agree and that row_splits is valid. Ids are not checked.
template <class Id>
Status CheckCsrShape(const Csr<Id>& batch);

// Whether every row has `length` entries. If so, row_splits is valid.
template <class Id>
bool HasRowsOfLength(const Csr<Id>& batch, int64_t length);

// CheckCsrShape and CheckIds.
template <class Id>
Status CheckCsr(const Csr<Id>& batch, int64_t input_dim, const ParallelFor& parallel_for);

// Converts the row indices of row-major COO entries, which must be non-decreasing, to row_splits of
// length num_rows + 1.
Status RowSplitsFromIndices(Span<const int64_t> row_indices, int64_t num_rows,
                            const ParallelFor& parallel_for, int64_t* row_splits);

// The same for pairs (row, id); also writes the ids.
Status CsrFromIndices(Span<const int64_t> indices, int64_t num_rows,
                      const ParallelFor& parallel_for, int64_t* ids, int64_t* row_splits);

}  // namespace twml

#endif  // TWML_CORE_CSR_H_
