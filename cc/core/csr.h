// A batch of sparse rows in CSR form, and the checks every kernel makes before it trusts one.
#ifndef TWML_CORE_CSR_H_
#define TWML_CORE_CSR_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// Row b holds entries row_splits[b] .. row_splits[b + 1]. No values: a binary batch, all 1.
template <class Id>
struct Csr {
  Span<const Id> ids;
  Span<const float> values;
  Span<const int64_t> row_splits;
  bool binary = false;

  int64_t num_rows() const { return row_splits.size() - 1; }
  int64_t num_entries() const { return ids.size(); }
};

// row_splits starts at 0, never falls, ends at num_entries.
Status CheckRowSplits(Span<const int64_t> row_splits, int64_t num_entries);

// Every id in [0, input_dim).
template <class Id>
Status CheckIds(Span<const Id> ids, int64_t input_dim, const ParallelFor& parallel_for);

// Sizes agree and splits are sound; ids may be any.
template <class Id>
Status CheckCsrShape(const Csr<Id>& batch);

// CheckCsrShape, and CheckIds.
template <class Id>
Status CheckCsr(const Csr<Id>& batch, int64_t input_dim, const ParallelFor& parallel_for);

// Row-major COO to CSR: row_splits of length num_rows + 1 from row_indices, which must not fall.
Status RowSplitsFromIndices(Span<const int64_t> row_indices, int64_t num_rows,
                            const ParallelFor& parallel_for, int64_t* row_splits);

// The same of pairs (row, id), with the ids by themselves.
Status CsrFromIndices(Span<const int64_t> indices, int64_t num_rows,
                      const ParallelFor& parallel_for, int64_t* ids, int64_t* row_splits);

}  // namespace twml

#endif  // TWML_CORE_CSR_H_
