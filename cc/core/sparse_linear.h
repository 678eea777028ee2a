// The sparse linear layer, y_b = sum_k value_k * W[id_k]: forward, backward, and the update of W.
#ifndef TWML_CORE_SPARSE_LINEAR_H_
#define TWML_CORE_SPARSE_LINEAR_H_

#include <cstdint>
#include <functional>

#include "cc/core/csr.h"
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

// out [batch rows, dim] = batch . weights. Each output row is summed in the order of its entries,
// whatever the threads (rows of more than kSegmentPiece entries: by pieces, in order).
template <class Id, class W>
Status SparseLinear(const Csr<Id>& batch, Matrix<const W> weights, const ParallelFor& parallel_for,
                    float* out);

// d(loss)/d(values): out[k] = weights[ids[k]] . grad[row of k].
template <class Id, class W>
Status SparseLinearValuesGrad(const Csr<Id>& batch, Matrix<const W> weights,
                              Matrix<const float> grad, const ParallelFor& parallel_for,
                              float* out);

// Where unique ids and their rows go, once their number is known. ids null: there is no memory, and
// nothing is written.
template <class Id>
struct RowsOutput {
  Id* ids;
  float* rows;  // [number, dim]
};
template <class Id>
using AllocateRows = std::function<RowsOutput<Id>(int64_t number)>;

// d(loss)/d(weights) as unique ascending ids and their summed rows: the transpose of the batch
// times grad [batch rows, dim]. Returns without allocating if the input is refused.
template <class Id>
Status SparseLinearWeightsGrad(const Csr<Id>& batch, int64_t input_dim, Matrix<const float> grad,
                               const ParallelFor& parallel_for, const AllocateRows<Id>& allocate);

// Sums the rows of equal ids: unique ascending ids and their sums, added in the order given.
template <class Id>
Status SumDuplicates(Span<const Id> ids, Matrix<const float> rows, const ParallelFor& parallel_for,
                     const AllocateRows<Id>& allocate);

// A table under an optimizer: its weights (float or Bfloat16) and the slots the rule keeps for
// them.
template <class W>
struct OptimizedTable {
  Matrix<W> weights;
  float* slots[kMaxSlots] = {};
  UpdateRule rule = UpdateRule::kSgd;
  const float* hyper = nullptr;  // kUpdateRules[rule].num_hyper of them
  uint64_t seed = 0;             // of this step, for the stochastic rounding of Bfloat16 weights
};

// Updates the rows `ids` of a table with the gradient rows `rows`. Repeated ids are summed first.
template <class Id, class W>
Status ApplyRows(Span<const Id> ids, Matrix<const float> rows, const OptimizedTable<W>& table,
                 const ParallelFor& parallel_for);

// SparseLinearWeightsGrad and ApplyRows in one pass, bit for bit the same result, the gradient
// never stored: memory O(entries + threads * dim).
template <class Id, class W>
Status SparseLinearBackwardApply(const Csr<Id>& batch, Matrix<const float> grad,
                                 const OptimizedTable<W>& table, const ParallelFor& parallel_for);

}  // namespace twml

#endif  // TWML_CORE_SPARSE_LINEAR_H_
