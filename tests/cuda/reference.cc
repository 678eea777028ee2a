// The CPU's kernels behind a C interface, as the reference for the CUDA kernels.
#include <cstddef>
#include <cstdint>

#include "cc/core/discretize.h"
#include "cc/core/max_norm.h"
#include "cc/core/simd_dispatch.h"
#include "cc/core/sparse_linear.h"

namespace {

using namespace twml;

template <class Id>
Csr<Id> BatchOf(const void* ids, const float* values, const int64_t* splits, int64_t n,
                int64_t rows) {
  Csr<Id> batch;
  batch.ids = {static_cast<const Id*>(ids), n};
  batch.binary = values == nullptr;
  if (values != nullptr) batch.values = {values, n};
  batch.row_splits = {splits, rows + 1};
  return batch;
}

// Calls run(Id{}, W{}) with the types of ids and weights.
template <class Run>
int Visit(int wide_ids, int bfloat16, Run run) {
  const Status status = wide_ids
                            ? (bfloat16 ? run(int64_t{}, Bfloat16{}) : run(int64_t{}, float{}))
                            : (bfloat16 ? run(int32_t{}, Bfloat16{}) : run(int32_t{}, float{}));
  return status.ok() ? 0 : 1;
}

}  // namespace

#define REFERENCE extern "C" __attribute__((visibility("default")))

REFERENCE const char* reference_simd_level() { return GetRowKernels().level; }

REFERENCE int reference_sparse_linear(const void* ids, int wide_ids, const float* values,
                                      const int64_t* splits, int64_t n, int64_t rows,
                                      const void* table, int bfloat16, int64_t table_rows,
                                      int64_t dim, float* out) {
  return Visit(wide_ids, bfloat16, [&](auto id, auto w) {
    using W = decltype(w);
    return SparseLinear(BatchOf<decltype(id)>(ids, values, splits, n, rows),
                        Matrix<const W>{static_cast<const W*>(table), table_rows, dim}, Serial,
                        out);
  });
}

REFERENCE int reference_values_grad(const void* ids, int wide_ids, const int64_t* splits, int64_t n,
                                    int64_t rows, const void* table, int bfloat16,
                                    int64_t table_rows, int64_t dim, const float* grad,
                                    float* out) {
  return Visit(wide_ids, bfloat16, [&](auto id, auto w) {
    using W = decltype(w);
    return SparseLinearValuesGrad(BatchOf<decltype(id)>(ids, nullptr, splits, n, rows),
                                  Matrix<const W>{static_cast<const W*>(table), table_rows, dim},
                                  Matrix<const float>{grad, rows, dim}, Serial, out);
  });
}

// unique_ids and out have n rows, of which the first *num_groups are written.
REFERENCE int reference_weights_grad(const void* ids, int wide_ids, const float* values,
                                     const int64_t* splits, int64_t n, int64_t rows,
                                     int64_t table_rows, int64_t dim, const float* grad,
                                     void* unique_ids, float* out, int64_t* num_groups) {
  return Visit(wide_ids, 0, [&](auto id, auto) {
    using Id = decltype(id);
    return SparseLinearWeightsGrad<Id>(BatchOf<Id>(ids, values, splits, n, rows), table_rows,
                                       Matrix<const float>{grad, rows, dim}, Serial,
                                       [&](int64_t number) {
                                         *num_groups = number;
                                         return RowsOutput<Id>{static_cast<Id*>(unique_ids), out};
                                       });
  });
}

// Sums the gradients of equal ids and updates their rows.
REFERENCE int reference_update(const void* ids, int wide_ids, const float* values,
                               const int64_t* splits, int64_t n, int64_t rows, void* table,
                               int bfloat16, int64_t table_rows, int64_t dim, const float* grad,
                               int rule, const float* hyper, uint64_t seed, float* slot0,
                               float* slot1) {
  return Visit(wide_ids, bfloat16, [&](auto id, auto w) {
    using Id = decltype(id);
    using W = decltype(w);
    OptimizedTable<W> optimized;
    optimized.weights = {static_cast<W*>(table), table_rows, dim};
    optimized.slots[0] = slot0;
    optimized.slots[1] = slot1;
    optimized.rule = static_cast<UpdateRule>(rule);
    optimized.hyper = hyper;
    optimized.seed = seed;
    GroupedBatch<Id> grouped;
    const Status status = GroupBatch<Id>(BatchOf<Id>(ids, values, splits, n, rows), table_rows,
                                         nullptr, Serial, &grouped);
    if (!status.ok()) return status;
    return SparseLinearBackwardApply(grouped, Matrix<const float>{grad, rows, dim}, optimized,
                                     Serial);
  });
}

// Infinities and NaNs are taken as 0.
REFERENCE int reference_max_norm(const int64_t* ids, const float* values, int64_t n, float* max_abs,
                                 int64_t input_dim, const float* bias, int training, float epsilon,
                                 float decay, float* out, float* scale) {
  MaxNormOptions options;
  options.epsilon = epsilon;
  options.decay = decay;
  options.nonfinite = NonFinitePolicy::kZero;
  const NormBatch<int64_t> batch = {{ids, n}, {values, n}};
  const Span<const float> shift = {bias, input_dim};
  const Span<const float>* b = bias == nullptr ? nullptr : &shift;
  const Status status =
      training
          ? MaxNormTraining<int64_t>(batch, {max_abs, input_dim}, b, options, Serial, {out, scale})
          : MaxNorm<int64_t>(batch, {max_abs, input_dim}, b, options, Serial, {out, scale});
  return status.ok() ? 0 : 1;
}

// ids_out and values_out have 2 n items, of which the first *number are written.
REFERENCE int reference_discretize(const int64_t* ids, const float* values, const int64_t* splits,
                                   int64_t n, int64_t rows, const int64_t* feature_ids,
                                   int64_t num_features, const float* boundaries,
                                   int64_t num_boundaries, const int64_t* boundary_splits, int side,
                                   int missing, int unknown, int keep_inputs, int hashing,
                                   int64_t bits, int64_t* ids_out, float* values_out,
                                   int64_t* splits_out, int64_t* number) {
  Buckets buckets;
  Status status = Buckets::Make({feature_ids, num_features}, {boundaries, num_boundaries},
                                {boundary_splits, num_features + 1}, Serial, &buckets);
  if (!status.ok()) return 1;
  DiscretizeOptions options;
  options.side = static_cast<Side>(side);
  options.missing = static_cast<MissingPolicy>(missing);
  options.unknown = static_cast<UnknownPolicy>(unknown);
  options.keep_inputs = keep_inputs != 0;
  const auto allocate = [&](int64_t total) {
    *number = total;
    return EntriesOutput{ids_out, values_out};
  };
  const auto batch = BatchOf<int64_t>(ids, values, splits, n, rows);
  status = (hashing ? HashingDiscretize<int64_t>
                    : PercentileDiscretize<int64_t>)(batch, buckets, options, bits, Serial,
                                                     allocate, splits_out);
  return status.ok() ? 0 : 1;
}

// Working memory that benchmarks reuse in every call.
struct Arena {
  char* memory;
  size_t size, used;
};

REFERENCE void* reference_allocate(void* user, size_t bytes) {
  Arena* arena = static_cast<Arena*>(user);
  const size_t rounded = (bytes + 255) / 256 * 256;
  if (rounded > arena->size - arena->used) return nullptr;
  void* memory = arena->memory + arena->used;
  arena->used += rounded;
  return memory;
}
