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

// The arrays of a batch and the view of them. values None: a binary batch.
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

// Collects unique ids and rows in vectors.
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
  py::tuple Result(int64_t dim) {
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

py::tuple WeightsGrad(const ArrayLike& ids, const std::optional<ArrayLike>& values,
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

py::tuple SummedDuplicates(const ArrayLike& ids_object, const ArrayLike& rows, int num_threads) {
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
  m.def("sparse_linear", &Forward, "ids"_a, "values"_a.none(true), "row_splits"_a, "weights"_a,
        py::kw_only(), IntArg("num_threads") = 0,
        "y[b] = sum of values[k] * weights[ids[k]] over row b. values=None: all 1. -> [B, D]");
  m.def("sparse_linear_weights_grad", &WeightsGrad, "ids"_a, "values"_a.none(true), "row_splits"_a,
        "grad"_a, IntArg("input_dim"), py::kw_only(), IntArg("num_threads") = 0,
        "Gradient by the weights: (unique ascending ids [U], summed rows [U, D]).");
  m.def("sparse_linear_values_grad", &ValuesGrad, "ids"_a, "row_splits"_a, "weights"_a, "grad"_a,
        py::kw_only(), IntArg("num_threads") = 0, "Gradient by the values: [K].");
  m.def("sum_duplicates", &SummedDuplicates, "ids"_a, "rows"_a, py::kw_only(),
        IntArg("num_threads") = 0,
        "(unique ascending ids, sums of their rows in the order given).");
  m.def("row_splits_from_indices", &RowSplits, "row_indices"_a, IntArg("num_rows"), py::kw_only(),
        IntArg("num_threads") = 0, "CSR offsets [num_rows + 1] of row-major row indices.");
}

}  // namespace twml
