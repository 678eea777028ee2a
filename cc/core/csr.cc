#include "cc/core/csr.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "cc/core/first_position.h"

namespace twml {

Status CheckRowSplits(Span<const int64_t> row_splits, int64_t num_entries) {
  if (row_splits.empty())
    return Invalid("row_splits must not be empty: it has one more item than the batch has rows");
  if (row_splits[0] != 0) return Invalid("row_splits[0] must be 0, got ", row_splits[0]);
  for (int64_t b = 1; b < row_splits.size(); ++b) {
    if (row_splits[b] < row_splits[b - 1]) {
      return Invalid("row_splits must be non-decreasing: row_splits[", b, "] = ", row_splits[b],
                     " after ", row_splits[b - 1]);
    }
  }
  const int64_t last = row_splits[row_splits.size() - 1];
  if (last != num_entries) {
    return Invalid("row_splits[", row_splits.size() - 1, "] must be the number of entries ",
                   num_entries, ", got ", last);
  }
  return Status();
}

template <class Id>
bool IdsInRange(Span<const Id> ids, int64_t input_dim) {
  using Unsigned = std::make_unsigned_t<Id>;
  if (input_dim <= 0) return ids.empty();
  // If the id space is wider than Id, only negative ids are out of range.
  const auto max_id = static_cast<int64_t>(std::numeric_limits<Id>::max());
  const auto last = static_cast<Unsigned>(std::min(input_dim - 1, max_id));
  // The sign of id or that of last - id is set if the id is out of range. There is no early exit
  // and no comparison, so that the compiler vectorizes the loop on any CPU.
  Unsigned signs = 0;
  for (const Id id : ids) signs |= static_cast<Unsigned>(id) | (last - static_cast<Unsigned>(id));
  return signs >> (8 * sizeof(Id) - 1) == 0;
}

template <class Id>
Status CheckIds(Span<const Id> ids, int64_t input_dim, const ParallelFor& parallel_for) {
  FirstPosition bad_id;
  constexpr int64_t kBlock = 16;  // ids, in 3 nanoseconds
  parallel_for((ids.size() + kBlock - 1) / kBlock, 3, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kBlock, end = std::min(last * kBlock, ids.size());
    if (IdsInRange<Id>({ids.data() + begin, end - begin}, input_dim)) return;
    int64_t k = begin;
    while (IdsInRange<Id>({ids.data() + k, 1}, input_dim)) ++k;
    bad_id.Record(k);
  });
  if (!bad_id.found()) return Status();
  const int64_t k = bad_id.value();
  return Invalid("ids[", k, "] = ", static_cast<int64_t>(ids[k]), " is out of range [0, ",
                 input_dim, ")");
}

template <class Id>
Status CheckCsrShape(const Csr<Id>& batch) {
  if (batch.binary ? !batch.values.empty() : batch.values.size() != batch.ids.size()) {
    return Invalid(
        "values must have ", batch.binary ? 0 : batch.ids.size(),
        batch.binary ? " items for a binary batch, got " : " items, one for each id, got ",
        batch.values.size());
  }
  return CheckRowSplits(batch.row_splits, batch.num_entries());
}

template <class Id>
bool HasRowsOfLength(const Csr<Id>& batch, int64_t length) {
  if (batch.row_splits.empty() || batch.num_entries() != batch.num_rows() * length) return false;
  constexpr int64_t kBlock = 4096;  // in which there is no early exit, as above
  int64_t differences = 0, expected = 0;
  for (int64_t begin = 0; differences == 0 && begin < batch.row_splits.size(); begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, batch.row_splits.size());
    for (int64_t b = begin; b < end; ++b, expected += length) {
      differences |= batch.row_splits[b] ^ expected;
    }
  }
  return differences == 0;
}

template <class Id>
Status CheckCsr(const Csr<Id>& batch, int64_t input_dim, const ParallelFor& parallel_for) {
  TWML_RETURN_IF_ERROR(CheckCsrShape(batch));
  return CheckIds(batch.ids, input_dim, parallel_for);
}

namespace {

// The name of a row-major COO entry in messages: `argument[k<column>]`.
struct ArgumentName {
  const char* argument;
  const char* column;
};

// Computes row splits from row_of(k), the row of each of n entries. Calls visit(k) once for each.
template <class RowOf, class Visit>
Status FillRowSplits(int64_t n, int64_t num_rows, ArgumentName name,
                     const ParallelFor& parallel_for, int64_t* row_splits, RowOf row_of,
                     Visit visit) {
  if (num_rows < 0) return Invalid("num_rows must not be negative, got ", num_rows);
  const auto in_range = [=](int64_t row) { return row >= 0 && row < num_rows; };
  FirstPosition out_of_range, out_of_order;
  // Entry k writes the splits of the rows after the row of entry k - 1, up to its own row. The
  // splits of the rows after the last entry are written at the end. If the rows are out of order,
  // which other threads have not noticed yet, two threads may write the same split. The store is
  // therefore atomic, which costs nothing, and its result is not used.
  parallel_for(n, 2, [&](int64_t begin, int64_t end) {
    int64_t before = begin == 0 ? -1 : row_of(begin - 1);
    if (begin != 0 && !in_range(before)) return;  // the thread that has that entry records it
    for (int64_t k = begin; k < end; ++k) {
      const int64_t row = row_of(k);
      if (row != before || before < 0) {
        if (!in_range(row)) return out_of_range.Record(k);
        if (row < before) {  // continuing could take rows x entries steps
          out_of_order.Record(k);
          while (k < end && in_range(row_of(k))) ++k;
          if (k < end) out_of_range.Record(k);
          return;
        }
        while (before < row) __atomic_store_n(&row_splits[++before], k, __ATOMIC_RELAXED);
      }
      visit(k);
    }
  });
  if (out_of_range.found()) {
    const int64_t k = out_of_range.value();
    return Invalid(name.argument, "[", k, name.column, "] = ", row_of(k), " is out of range [0, ",
                   num_rows, ")");
  }
  if (out_of_order.found()) {
    const int64_t k = out_of_order.value();
    return Invalid(name.argument, " must be in row-major order: ", name.argument, "[", k,
                   name.column, "] = ", row_of(k), " after ", row_of(k - 1));
  }
  for (int64_t b = n == 0 ? 0 : row_of(n - 1) + 1; b <= num_rows; ++b) row_splits[b] = n;
  return Status();
}

}  // namespace

Status RowSplitsFromIndices(Span<const int64_t> row_indices, int64_t num_rows,
                            const ParallelFor& parallel_for, int64_t* row_splits) {
  return FillRowSplits(
      row_indices.size(), num_rows, {"row_indices", ""}, parallel_for, row_splits,
      [&](int64_t k) { return row_indices[k]; }, [](int64_t) {});
}

Status CsrFromIndices(Span<const int64_t> indices, int64_t num_rows,
                      const ParallelFor& parallel_for, int64_t* ids, int64_t* row_splits) {
  return FillRowSplits(
      indices.size() / 2, num_rows, {"indices", ", 0"}, parallel_for, row_splits,
      [&](int64_t k) { return indices[2 * k]; }, [&](int64_t k) { ids[k] = indices[2 * k + 1]; });
}

#define TWML_INSTANTIATE(Id)                                                 \
  template bool IdsInRange<Id>(Span<const Id>, int64_t);                     \
  template Status CheckIds<Id>(Span<const Id>, int64_t, const ParallelFor&); \
  template Status CheckCsrShape<Id>(const Csr<Id>&);                         \
  template bool HasRowsOfLength<Id>(const Csr<Id>&, int64_t);                \
  template Status CheckCsr<Id>(const Csr<Id>&, int64_t, const ParallelFor&);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
