#include "cc/core/sparse_linear.h"

#include <optional>
#include <vector>

#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

Matrix<const float> MatrixOf(const Array<float>& a, const char* name) {
  RequireRank(a, 2, name);
  return {a.data(), a.shape(0), a.shape(1)};
}

// The arrays of a batch and a view of them. A batch without values is binary.
struct Batch {
  Array<int64_t> ids;
  Array<float> values;
  Array<int64_t> row_splits;
  Csr<int64_t> csr;

  Batch(const ArrayLike& ids_object, const std::optional<ArrayLike>& values_object,
        const ArrayLike& splits_object)
      : ids(ToArray<int64_t>(ids_object, "ids")),
        row_splits(ToArray<int64_t>(splits_object, "row_splits")) {
    const bool binary = !values_object;
    if (!binary) values = ToArray<float>(*values_object, "values");
    RequireRank(ids, 1, "ids");
    RequireRank(values, 1, "values");
    RequireRank(row_splits, 1, "row_splits");
    if (row_splits.size() == 0) RaiseIfError(CheckRowSplits({}, 0));
    csr = {SpanOf(ids), SpanOf(values), SpanOf(row_splits), binary};
  }
};

// Collects unique ids and their rows in vectors.
struct RowsCollector {
  std::vector<int64_t> ids;
  std::vector<float> rows;

  AllocateRows<int64_t> Allocate(int64_t dim) {
    return [this, dim](int64_t number) -> RowsOutput<int64_t> {
      ids.resize(number);
      rows.resize(number * dim);
      return {ids.data(), rows.data()};
    };
  }
  IdsAndRows Result(int64_t dim) {
    const auto number = static_cast<py::ssize_t>(ids.size());
    return py::make_tuple(MoveToArray(std::move(ids)), MoveToArray(std::move(rows), {number, dim}));
  }
};

py::array_t<float> Forward(const ArrayLike& ids, const std::optional<ArrayLike>& values,
                           const ArrayLike& row_splits, const ArrayLike& weights, int num_threads) {
  const Batch batch(ids, values, row_splits);
  const auto array = ToArray<float>(weights, "weights");
  const auto table = MatrixOf(array, "weights");
  py::array_t<float> out({static_cast<py::ssize_t>(batch.csr.num_rows()), array.shape(1)});
  float* data = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    status = SparseLinear(batch.csr, table, Threads(num_threads), data);
  }
  RaiseIfError(status);
  return out;
}

IdsAndRows WeightsGrad(const ArrayLike& ids, const std::optional<ArrayLike>& values,
                       const ArrayLike& row_splits, const ArrayLike& grad, int64_t input_dim,
                       int num_threads) {
  const Batch batch(ids, values, row_splits);
  const auto array = ToArray<float>(grad, "grad");
  const auto rows = MatrixOf(array, "grad");
  RowsCollector out;
  Status status;
  {
    py::gil_scoped_release release;
    status = SparseLinearWeightsGrad(batch.csr, input_dim, rows, Threads(num_threads),
                                     out.Allocate(rows.dim));
  }
  RaiseIfError(status);
  return out.Result(rows.dim);
}

py::array_t<float> ValuesGrad(const ArrayLike& ids, const ArrayLike& row_splits,
                              const ArrayLike& weights, const ArrayLike& grad, int num_threads) {
  const Batch batch(ids, {}, row_splits);
  const auto weights_array = ToArray<float>(weights, "weights");
  const auto grad_array = ToArray<float>(grad, "grad");
  const auto table = MatrixOf(weights_array, "weights");
  const auto rows = MatrixOf(grad_array, "grad");
  py::array_t<float> out(static_cast<py::ssize_t>(batch.csr.num_entries()));
  float* data = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    status = SparseLinearValuesGrad(batch.csr, table, rows, Threads(num_threads), data);
  }
  RaiseIfError(status);
  return out;
}

IdsAndRows SummedDuplicates(const ArrayLike& ids_object, const ArrayLike& rows, int num_threads) {
  const auto ids = ToArray<int64_t>(ids_object, "ids");
  RequireRank(ids, 1, "ids");
  const auto array = ToArray<float>(rows, "rows");
  const auto matrix = MatrixOf(array, "rows");
  RowsCollector out;
  Status status;
  {
    py::gil_scoped_release release;
    status = SumDuplicates(SpanOf(ids), matrix, Threads(num_threads), out.Allocate(matrix.dim));
  }
  RaiseIfError(status);
  return out.Result(matrix.dim);
}

py::array_t<int64_t> RowSplits(const ArrayLike& row_indices_object, int64_t num_rows,
                               int num_threads) {
  const auto row_indices = ToArray<int64_t>(row_indices_object, "row_indices");
  RequireRank(row_indices, 1, "row_indices");
  constexpr int64_t kMaxRows = int64_t{1} << 60;
  if (num_rows < 0 || num_rows >= kMaxRows) {
    RaiseIfError(Invalid("num_rows must be in [0, 2^60), got ", num_rows));
  }
  py::array_t<int64_t> out(static_cast<py::ssize_t>(num_rows + 1));
  int64_t* data = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    status = RowSplitsFromIndices(SpanOf(row_indices), num_rows, Threads(num_threads), data);
  }
  RaiseIfError(status);
  return out;
}

}  // namespace

void BindSparseLinear(py::module_& m) {
  using py::literals::operator""_a;
  m.def(
      "sparse_linear", &Forward, "ids"_a, "values"_a.none(true), "row_splits"_a, "weights"_a,
      py::kw_only(), IntArg("num_threads") = 0,
      R"(Multiplies a sparse batch by a table: y[b] = sum of values[k] * weights[ids[k]] over row b.

The result does not depend on the number of threads.

Args:
  ids: int64 [K], the ids of all entries.
  values: float32 [K], the values of the entries, or None if all are 1.
  row_splits: int64 [B + 1], the CSR offsets of the rows.
  weights: float32 [N, D], the table.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [B, D], one row for each row of the batch.

Raises:
  ValueError: an id is not in [0, N), row_splits is not a valid sequence of offsets, or the shape
    or the type of an argument is wrong.)");
  m.def("sparse_linear_weights_grad", &WeightsGrad, "ids"_a, "values"_a.none(true), "row_splits"_a,
        "grad"_a, IntArg("input_dim"), py::kw_only(), IntArg("num_threads") = 0,
        R"(Computes the gradient of sparse_linear with respect to its weights.

Args:
  ids: int64 [K], the ids of all entries.
  values: float32 [K], the values of the entries, or None if all are 1.
  row_splits: int64 [B + 1], the CSR offsets of the rows.
  grad: float32 [B, D], the gradient of the output.
  input_dim: the number of rows N of the table.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  The unique ids in ascending order, int64 [U], and the gradient of their rows, float32 [U, D]. The
  gradient of all other rows is 0.

Raises:
  ValueError: an id is not in [0, N), row_splits is not a valid sequence of offsets, or the shape
    or the type of an argument is wrong.)");
  m.def("sparse_linear_values_grad", &ValuesGrad, "ids"_a, "row_splits"_a, "weights"_a, "grad"_a,
        py::kw_only(), IntArg("num_threads") = 0,
        R"(Computes the gradient of sparse_linear with respect to its values.

Args:
  ids: int64 [K], the ids of all entries.
  row_splits: int64 [B + 1], the CSR offsets of the rows.
  weights: float32 [N, D], the table.
  grad: float32 [B, D], the gradient of the output.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [K], the dot product of weights[ids[k]] and the gradient of the row of entry k.

Raises:
  ValueError: an id is not in [0, N), row_splits is not a valid sequence of offsets, or the shape
    or the type of an argument is wrong.)");
  m.def("sum_duplicates", &SummedDuplicates, "ids"_a, "rows"_a, py::kw_only(),
        IntArg("num_threads") = 0,
        R"(Sums the rows of equal ids.

Args:
  ids: int64 [K], non-negative ids.
  rows: float32 [K, D], one row for each id.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  The unique ids in ascending order, int64 [U], and the sums of their rows, float32 [U, D]. The rows
  of an id are added in the given order.

Raises:
  ValueError: an id is negative, or the shape or the type of an argument is wrong.)");
  m.def("row_splits_from_indices", &RowSplits, "row_indices"_a, IntArg("num_rows"), py::kw_only(),
        IntArg("num_threads") = 0,
        R"(Converts the row indices of COO entries in row-major order to CSR offsets.

Args:
  row_indices: int64 [K], the row of each entry, non-decreasing and in [0, num_rows).
  num_rows: the number of rows B.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  int64 [B + 1], the offsets: row b has the entries row_splits[b] to row_splits[b + 1].

Raises:
  ValueError: a row index is out of range or less than the one before, num_rows is negative, or
    row_indices is not a vector of integers.)");
}

}  // namespace twml
