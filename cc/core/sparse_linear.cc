#include "cc/core/sparse_linear.h"

#include <atomic>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/group_by_id.h"
#include "cc/core/hash.h"
#include "cc/core/prefetch.h"
#include "cc/core/segment_sum.h"
#include "cc/core/simd_dispatch.h"

namespace twml {
namespace {

constexpr auto kNothing = [](auto...) {};

Status CheckGrad(int64_t num_rows, Matrix<const float> grad) {
  if (grad.rows == num_rows) return Status();
  return Invalid("grad must have one row for each of the batch's ", num_rows, " rows, got ",
                 grad.rows);
}

// SumSegments where the segments are groups and the table is `grad`.
template <class G, class Destination, class Prefetch, class Consume>
void SumGroups(const G& groups, Matrix<const float> grad, const ParallelFor& parallel_for,
               Destination destination, Prefetch prefetch, Consume consume) {
  if (groups.num_groups == 0) return;
  SumSegments(grad.data, grad.dim, {groups.splits.data(), groups.num_groups + 1},
              groups.rows.data(), groups.values.data(), parallel_for, destination, prefetch,
              consume);
}

// Writes the ids of the groups and their sums to memory from `allocate`.
template <class G, class Id>
void WriteSums(const G& groups, Matrix<const float> grad, const ParallelFor& parallel_for,
               const AllocateRows<Id>& allocate) {
  const RowsOutput<Id> out = allocate(groups.num_groups);
  if (groups.num_groups == 0 || out.ids == nullptr) return;
  std::copy_n(groups.ids.data(), groups.num_groups, out.ids);
  SumGroups(
      groups, grad, parallel_for, [&](int64_t u, float*) { return out.rows + u * grad.dim; },
      kNothing, kNothing);
}

// Applies the update rule of a table to one row at a time.
template <class W>
class RowUpdater {
 public:
  explicit RowUpdater(const OptimizedTable<W>& table)
      : table_(table),
        info_(kUpdateRules[static_cast<int>(table.rule)]),
        slot_dim_(info_.rowwise_slots ? 1 : table.weights.dim),
        update_(GetRowKernels().ForWeights<W>().update[static_cast<int>(table.rule)]) {}

  __attribute__((always_inline)) void Prefetch(int64_t row) const {
    PrefetchRow(table_.weights.data + row * table_.weights.dim, table_.weights.dim);
    for (int s = 0; s < info_.num_slots; ++s)
      PrefetchRow(table_.slots[s] + row * slot_dim_, slot_dim_);
  }

  // The id, which is the row except in a cache, determines the bits of stochastic rounding.
  void operator()(int64_t row, int64_t id, const float* gradient) const {
    float* slots[kMaxSlots] = {};
    for (int s = 0; s < info_.num_slots; ++s) slots[s] = table_.slots[s] + row * slot_dim_;
    uint32_t seed = 0;
    if constexpr (!std::is_same_v<W, float>) {
      seed = static_cast<uint32_t>(Mix64(table_.seed + Mix64(static_cast<uint64_t>(id))));
    }
    update_(table_.weights.data + row * table_.weights.dim, slots, gradient, table_.weights.dim,
            table_.hyper, seed);
  }

 private:
  const OptimizedTable<W>& table_;
  const UpdateRuleInfo& info_;
  const int64_t slot_dim_;
  const UpdateRow<W> update_;
};

// The rows of different ids in the matrix of a table: the ids themselves, without a map.
template <class Id>
class MappedRows {
 public:
  Status Find(Span<const Id> ids, const RowMap<Id>* map) {
    rows_ = ids.data();
    if (map == nullptr || ids.empty()) return Status();
    found_ = Scratch<Id>(ids.size());
    rows_ = found_.data();
    return map->find(ids, found_.data());
  }
  const Id* data() const { return rows_; }

 private:
  const Id* rows_ = nullptr;
  Scratch<Id> found_;
};

// UpdateGroups with a kernel that updates a range of groups.
template <class Id>
void UpdateGroupsWithKernel(GroupUpdater<Id> kernel, const Groups<Id, int32_t>& groups,
                            const Id* rows, Matrix<const float> grad,
                            const OptimizedTable<float>& table, const ParallelFor& parallel_for) {
  if (groups.num_groups == 0) return;
  const Span<const int64_t> splits(groups.splits.data(), groups.num_groups + 1);
  const int64_t cost = CostOfEntry(grad.dim);
  const EntrySum<float, int32_t> sum_entries{grad.data, grad.dim, groups.rows.data(),
                                             groups.values.data(), splits[groups.num_groups]};
  const LongSegments pieces(splits, grad.dim, cost, parallel_for, sum_entries);
  const GroupUpdates<Id> all = {rows,
                                splits.data(),
                                sum_entries.num_entries,
                                sum_entries.ids,
                                sum_entries.values,
                                grad.data,
                                table.weights.data,
                                table.slots,
                                table.hyper};
  const RowUpdater<float> update(table);
  ForSegments(splits, 2, cost, parallel_for, [&](int64_t begin, int64_t end) {
    pieces.Visit(
        begin, end, [&](int64_t from, int64_t to) { kernel(all, from, to); },
        [&](int64_t u) {
          std::vector<float> sum(grad.dim);
          pieces.Sum(u, sum.data());
          update(rows[u], groups.ids[u], sum.data());
        });
  });
}

// Sums the gradient of each group and immediately updates its row.
template <class Id, class Row, class W>
Status UpdateGroups(const Groups<Id, Row>& groups, Matrix<const float> grad,
                    const OptimizedTable<W>& table, const ParallelFor& parallel_for,
                    const RowMap<Id>* map) {
  MappedRows<Id> rows;
  TWML_RETURN_IF_ERROR(rows.Find({groups.ids.data(), groups.num_groups}, map));
  if constexpr (std::is_same_v<W, float> && std::is_same_v<Row, int32_t>) {
    if (const auto kernel = GetGroupKernels().ForIds<Id>(table.rule, grad.dim)) {
      UpdateGroupsWithKernel<Id>(kernel, groups, rows.data(), grad, table, parallel_for);
      return Status();
    }
  }
  const RowUpdater<W> update(table);
  SumGroups(
      groups, grad, parallel_for, [](int64_t, float* scratch) { return scratch; },
      [&](int64_t u) __attribute__((always_inline)) { update.Prefetch(rows.data()[u]); },
      [&](int64_t u, const float* sum) { update(rows.data()[u], groups.ids[u], sum); });
  return Status();
}

template <class Id>
bool StrictlyAscending(Span<const Id> ids) {
  bool ascending = true;
  for (int64_t k = 1; k < ids.size(); ++k) ascending &= ids[k - 1] < ids[k];
  return ascending;
}

template <class Id>
Status CheckRows(Span<const Id> ids, Matrix<const float> rows) {
  if (rows.rows == ids.size()) return Status();
  return Invalid("rows must have one row for each of the ", ids.size(), " ids, got ", rows.rows);
}

Status CheckTableDim(Matrix<const float> grad, int64_t table_dim) {
  if (grad.dim == table_dim) return Status();
  return Invalid("the gradient's rows must be as wide as the table's, ", table_dim, ", got ",
                 grad.dim);
}

}  // namespace

template <class Id, class W>
Status SparseLinear(const Csr<Id>& batch, Matrix<const W> weights, const ParallelFor& parallel_for,
                    float* out) {
  const bool row_per_entry = batch.binary && batch.values.empty() && HasRowsOfLength(batch, 1);
  if (!row_per_entry) TWML_RETURN_IF_ERROR(CheckCsrShape(batch));
  if (batch.num_rows() == 0 || weights.dim == 0) {
    return CheckIds(batch.ids, weights.rows, parallel_for);
  }
  const int64_t dim = weights.dim, cost = CostOfEntry(dim);
  const Span<const int64_t> splits = batch.row_splits;
  const float* const values = batch.binary ? nullptr : batch.values.data();
  // Ids are checked just before their rows are read, so that they are in a near cache.
  std::atomic<bool> in_range{true};
  const auto check = [&](int64_t begin, int64_t end) {
    if (IdsInRange<Id>({batch.ids.data() + begin, end - begin}, weights.rows)) return true;
    in_range.store(false, std::memory_order_relaxed);
    return false;
  };
  const SegmentSums<Id, W> sums = {
      weights.data, dim, splits.data(), batch.ids.data(), values, batch.num_entries(), out};
  const auto& kernels = GetRowKernels().ForWeights<W>().template ForIds<Id>();
  if (row_per_entry) {
    parallel_for(batch.num_rows(), 2 + cost, [&](int64_t begin, int64_t end) {
      if (check(begin, end)) kernels.gather_rows(sums, begin, end);
    });
    return in_range ? Status() : CheckIds(batch.ids, weights.rows, parallel_for);
  }
  const EntrySum<W, Id> sum_entries{weights.data, dim, batch.ids.data(), values,
                                    batch.num_entries()};
  const LongSegments pieces(splits, dim, cost, parallel_for,
                            [&](int64_t begin, int64_t end, float* sum) {
                              if (check(begin, end)) sum_entries(begin, end, sum);
                            });
  ForSegments(splits, 2, cost, parallel_for, [&](int64_t begin, int64_t end) {
    pieces.Visit(
        begin, end,
        [&](int64_t from, int64_t to) {
          if (check(splits[from], splits[to])) kernels.sum_segments(sums, from, to);
        },
        [&](int64_t b) { pieces.Sum(b, out + b * dim); });
  });
  return in_range ? Status() : CheckIds(batch.ids, weights.rows, parallel_for);
}

template <class Id, class W>
Status SparseLinearValuesGrad(const Csr<Id>& batch, Matrix<const W> weights,
                              Matrix<const float> grad, const ParallelFor& parallel_for,
                              float* out) {
  TWML_RETURN_IF_ERROR(CheckCsr(batch, weights.rows, parallel_for));
  TWML_RETURN_IF_ERROR(CheckGrad(batch.num_rows(), grad));
  TWML_RETURN_IF_ERROR(CheckTableDim(grad, weights.dim));
  const auto dot_rows = GetRowKernels().ForWeights<W>().template ForIds<Id>().dot_rows;
  const Span<const int64_t> splits = batch.row_splits;
  ForSegments(splits, 2, CostOfEntry(weights.dim), parallel_for, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      dot_rows(weights.data, weights.dim, batch.ids.data() + splits[b], grad.data + b * grad.dim,
               splits[b + 1] - splits[b], batch.num_entries() - splits[b], out + splits[b]);
    }
  });
  return Status();
}

template <class Id>
Status SparseLinearWeightsGrad(const Csr<Id>& batch, int64_t input_dim, Matrix<const float> grad,
                               const ParallelFor& parallel_for, const AllocateRows<Id>& allocate) {
  TWML_RETURN_IF_ERROR(CheckCsrShape(batch));
  TWML_RETURN_IF_ERROR(CheckGrad(batch.num_rows(), grad));
  GroupedBatch<Id> grouped;
  TWML_RETURN_IF_ERROR(GroupBatch<Id>(batch, input_dim, nullptr, parallel_for, &grouped));
  return SparseLinearWeightsGrad(grouped, grad, parallel_for, allocate);
}

template <class Id>
Status SparseLinearWeightsGrad(const GroupedBatch<Id>& batch, Matrix<const float> grad,
                               const ParallelFor& parallel_for, const AllocateRows<Id>& allocate) {
  TWML_RETURN_IF_ERROR(CheckGrad(batch.num_rows, grad));
  std::visit([&](const auto& groups) { WriteSums(groups, grad, parallel_for, allocate); },
             batch.groups);
  return Status();
}

template <class Id>
Status SumDuplicates(Span<const Id> ids, Matrix<const float> rows, const ParallelFor& parallel_for,
                     const AllocateRows<Id>& allocate) {
  // The largest id space. For 32-bit ids it contains all of them.
  constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
  constexpr int64_t kIdSpace = sizeof(Id) == 4 ? int64_t{1} << 31 : kMaxInt64;
  TWML_RETURN_IF_ERROR(CheckIds(ids, kIdSpace, parallel_for));
  TWML_RETURN_IF_ERROR(CheckRows(ids, rows));
  int64_t last = 0;
  for (const Id id : ids) last = std::max<int64_t>(last, id);
  WithRowType(ids.size(), [&](auto row) {
    WriteSums(GroupById<Id, decltype(row)>(ids, {}, {}, last + 1, parallel_for), rows, parallel_for,
              allocate);
  });
  return Status();
}

template <class Id, class W>
Status ApplyRows(Span<const Id> ids, Matrix<const float> rows, const OptimizedTable<W>& table,
                 const ParallelFor& parallel_for, const RowMap<Id>* map) {
  const int64_t num_rows = map == nullptr ? table.weights.rows : map->num_rows;
  TWML_RETURN_IF_ERROR(CheckIds(ids, num_rows, parallel_for));
  TWML_RETURN_IF_ERROR(CheckRows(ids, rows));
  TWML_RETURN_IF_ERROR(CheckTableDim(rows, table.weights.dim));
  if (table.weights.dim == 0) return Status();  // the mean over no columns is undefined
  if (!StrictlyAscending(ids)) {
    Status status;
    WithRowType(ids.size(), [&](auto row) {
      status = UpdateGroups(GroupById<Id, decltype(row)>(ids, {}, {}, num_rows, parallel_for), rows,
                            table, parallel_for, map);
    });
    return status;
  }
  MappedRows<Id> targets;
  TWML_RETURN_IF_ERROR(targets.Find(ids, map));
  const RowUpdater<W> update(table);
  parallel_for(ids.size(), 10 + rows.dim / 4, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAhead = 6;
    for (int64_t u = begin; u < end; ++u) {
      if (u + kAhead < end) update.Prefetch(targets.data()[u + kAhead]);
      update(targets.data()[u], ids[u], rows.data + u * rows.dim);
    }
  });
  return Status();
}

template <class Id, class W>
Status SparseLinearBackwardApply(const GroupedBatch<Id>& batch, Matrix<const float> grad,
                                 const OptimizedTable<W>& table, const ParallelFor& parallel_for,
                                 const RowMap<Id>* map) {
  const int64_t num_rows = map == nullptr ? table.weights.rows : map->num_rows;
  if (batch.input_dim > num_rows) {
    const int64_t last = std::visit(
        [](const auto& groups) {
          return groups.num_groups == 0 ? int64_t{-1} : int64_t{groups.ids[groups.num_groups - 1]};
        },
        batch.groups);
    if (last >= num_rows) {
      return Invalid("groups must have ids in [0, ", num_rows, "), got ", last);
    }
  }
  TWML_RETURN_IF_ERROR(CheckGrad(batch.num_rows, grad));
  TWML_RETURN_IF_ERROR(CheckTableDim(grad, table.weights.dim));
  if (table.weights.dim == 0) return Status();
  return std::visit(
      [&](const auto& groups) { return UpdateGroups(groups, grad, table, parallel_for, map); },
      batch.groups);
}

#define TWML_INSTANTIATE(Id)                                                                 \
  template Status SparseLinearWeightsGrad<Id>(const Csr<Id>&, int64_t, Matrix<const float>,  \
                                              const ParallelFor&, const AllocateRows<Id>&);  \
  template Status SumDuplicates<Id>(Span<const Id>, Matrix<const float>, const ParallelFor&, \
                                    const AllocateRows<Id>&);                                \
  template Status SparseLinearWeightsGrad<Id>(const GroupedBatch<Id>&, Matrix<const float>,  \
                                              const ParallelFor&, const AllocateRows<Id>&);  \
  TWML_INSTANTIATE_TABLE(Id, float)                                                          \
  TWML_INSTANTIATE_TABLE(Id, Bfloat16)
#define TWML_INSTANTIATE_TABLE(Id, W)                                                             \
  template Status SparseLinear<Id, W>(const Csr<Id>&, Matrix<const W>, const ParallelFor&,        \
                                      float*);                                                    \
  template Status SparseLinearValuesGrad<Id, W>(const Csr<Id>&, Matrix<const W>,                  \
                                                Matrix<const float>, const ParallelFor&, float*); \
  template Status ApplyRows<Id, W>(Span<const Id>, Matrix<const float>, const OptimizedTable<W>&, \
                                   const ParallelFor&, const RowMap<Id>*);                        \
  template Status SparseLinearBackwardApply<Id, W>(const GroupedBatch<Id>&, Matrix<const float>,  \
                                                   const OptimizedTable<W>&, const ParallelFor&,  \
                                                   const RowMap<Id>*);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE
#undef TWML_INSTANTIATE_TABLE

}  // namespace twml
