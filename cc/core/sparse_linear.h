// The sparse linear layer, y_b = sum_k value_k * W[id_k]: forward pass, backward pass, and the
// update of W.
#ifndef TWML_CORE_SPARSE_LINEAR_H_
#define TWML_CORE_SPARSE_LINEAR_H_

#include <cstdint>
#include <functional>

#include "cc/core/csr.h"
#include "cc/core/group_by_id.h"
#include "cc/core/parallel.h"
#include "cc/core/simd/row_kernels.h"
#include "cc/core/span.h"
#include "cc/core/status.h"
#include "cc/core/update_rules.h"

namespace twml {

// A row-major [rows, dim] matrix.
template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t dim = 0;
};

// Computes out [batch rows, dim] = batch . weights. Each output row is summed in the order of its
// entries, for any number of threads. Rows of more than kSegmentPiece entries are summed in pieces,
// in order.
template <class Id, class W>
Status SparseLinear(const Csr<Id>& batch, Matrix<const W> weights, const ParallelFor& parallel_for,
                    float* out);

// Computes d(loss)/d(values): out[k] = weights[ids[k]] . grad[row of entry k].
template <class Id, class W>
Status SparseLinearValuesGrad(const Csr<Id>& batch, Matrix<const W> weights,
                              Matrix<const float> grad, const ParallelFor& parallel_for,
                              float* out);

// The memory for unique ids and their rows. `ids` is null if it could not be allocated, in which
// case nothing is written.
template <class Id>
struct RowsOutput {
  Id* ids;
  float* rows;  // [number, dim]
};
template <class Id>
using AllocateRows = std::function<RowsOutput<Id>(int64_t number)>;

// Computes d(loss)/d(weights), the product of the transposed batch and grad [batch rows, dim], as
// unique ids in ascending order and their summed rows. Allocates nothing if the input is invalid.
template <class Id>
Status SparseLinearWeightsGrad(const Csr<Id>& batch, int64_t input_dim, Matrix<const float> grad,
                               const ParallelFor& parallel_for, const AllocateRows<Id>& allocate);

// The same for a batch that is grouped already.
template <class Id>
Status SparseLinearWeightsGrad(const GroupedBatch<Id>& batch, Matrix<const float> grad,
                               const ParallelFor& parallel_for, const AllocateRows<Id>& allocate);

// Sums the rows of equal ids in the given order. The result are unique ids in ascending order and
// their sums. For ids that are grouped already (GroupIds), SparseLinearWeightsGrad does the same.
template <class Id>
Status SumDuplicates(Span<const Id> ids, Matrix<const float> rows, const ParallelFor& parallel_for,
                     const AllocateRows<Id>& allocate);

// A table with its optimizer state: the weights (float or Bfloat16) and the slots of the update
// rule.
template <class W>
struct OptimizedTable {
  Matrix<W> weights;
  float* slots[kMaxSlots] = {};
  UpdateRule rule = UpdateRule::kSgd;
  const float* hyper = nullptr;  // [kUpdateRules[rule].num_hyper]
  uint64_t seed = 0;             // of this step, for stochastic rounding of Bfloat16 weights
};

// Where the rows of a table are whose matrix has only some of them, as a cache. `find` is called
// once in an update, with different ids in [0, num_rows), and writes their rows in the matrix.
template <class Id>
struct RowMap {
  int64_t num_rows = 0;
  std::function<Status(Span<const Id> ids, Id* rows)> find;
};

// Updates the rows `ids` of a table with the gradient rows `rows`. Rows of repeated ids are summed
// first. With a `map`, that is where the rows of the ids are.
template <class Id, class W>
Status ApplyRows(Span<const Id> ids, Matrix<const float> rows, const OptimizedTable<W>& table,
                 const ParallelFor& parallel_for, const RowMap<Id>* map = nullptr);

// SparseLinearWeightsGrad and ApplyRows in one pass. The result is bit-identical, but the gradient
// is not stored: memory is O(entries + threads * dim). Several tables that are multiplied by the
// same batch can be updated from one grouping. `map` is that of ApplyRows.
template <class Id, class W>
Status SparseLinearBackwardApply(const GroupedBatch<Id>& batch, Matrix<const float> grad,
                                 const OptimizedTable<W>& table, const ParallelFor& parallel_for,
                                 const RowMap<Id>* map = nullptr);

}  // namespace twml

#endif  // TWML_CORE_SPARSE_LINEAR_H_
