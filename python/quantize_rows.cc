#include "cc/core/quantize_rows.h"

#include "cc/core/simd/scoring_kernels.h"
#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

py::array_t<uint8_t> Quantized(const ArrayLike& rows, int bits, int bins, float ratio,
                               int num_threads) {
  const auto matrix = ToArray<float>(rows, "rows");
  RequireRank(matrix, 2, "rows");
  QuantizeOptions options;
  options.bits = bits;
  options.bins = bins;
  options.ratio = ratio;
  py::array_t<uint8_t> out;
  const auto allocate = [&](int64_t bytes) {
    py::gil_scoped_acquire acquire;
    out = py::array_t<uint8_t>(bytes);
    return out.mutable_data();
  };
  Status status;
  {
    py::gil_scoped_release release;
    const Matrix<const float> view = {matrix.data(), matrix.shape(0), matrix.shape(1)};
    status = QuantizeRows(view, options, Threads(num_threads), allocate);
  }
  RaiseIfError(status);
  return out;
}

py::array_t<uint8_t> QuantizedForScorer(const ArrayLike& rows, int bits, int num_threads) {
  const auto matrix = ToArray<float>(rows, "rows");
  RequireRank(matrix, 2, "rows");
  if (bits != 8 && bits != 4) RaiseIfError(Invalid("bits must be 8 or 4, got ", bits));
  QuantizeOptions options;
  options.bits = bits;
  py::array_t<uint8_t> out({matrix.shape(0), QuantizedRowBytes(matrix.shape(1), bits)});
  uint8_t* const data = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    const Matrix<const float> view = {matrix.data(), matrix.shape(0), matrix.shape(1)};
    status = QuantizeToRows(view, options, Threads(num_threads), data);
  }
  RaiseIfError(status);
  return out;
}

FloatArray Dequantized(const ArrayLike& quantized, int num_threads) {
  const auto bytes = ToArray<uint8_t>(quantized, "quantized");
  RequireRank(bytes, 1, "quantized");
  FloatArray out;
  const auto allocate = [&](int64_t rows, int64_t cols) {
    py::gil_scoped_acquire acquire;
    out = FloatArray({static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(cols)});
    return out.mutable_data();
  };
  Status status;
  {
    py::gil_scoped_release release;
    status = DequantizeRows(SpanOf(bytes), Threads(num_threads), allocate);
  }
  RaiseIfError(status);
  return out;
}

}  // namespace

void BindQuantizeRows(py::module_& m) {
  using py::literals::operator""_a;
  m.def("quantize_rows", &Quantized, "rows"_a, py::kw_only(), IntArg("bits"), IntArg("bins") = 32,
        "ratio"_a = 0.5f, IntArg("num_threads") = 0,
        R"(Quantizes the rows of a matrix to 8, 4, 3 or 2 bits an item.

A row becomes the nearest points of a grid 2^exponent * (offset + scale * code) with a float16
offset and scale. The grid covers the part of the row's range that the greedy search of Check-N-Run
(Eisenman et al., NSDI 2022, "Check-N-Run: a Checkpointing System for Training Deep Learning
Recommendation Models") finds: it begins with the whole range, cuts off one bin at the end where
this costs less, and so on, and keeps the grid with the least squared error.

The root mean squared error of a row is at most max((max - min) / (2^bits - 1), m / 2048), m being
the row's largest magnitude, or 2^-126 if that is larger. Rows of one repeated number are exact, and
so are rows with a NaN or an infinity, which are stored as they are. The bytes do not depend on the
number of threads or on the SIMD level.

Args:
  rows: float32 [R, D].
  bits: 8, 4, 3 or 2 bits an item. Each row takes 5 bytes more.
  bins: parts into which the search divides the range of a row, in [0, 4096]. 0: the whole range.
  ratio: the part of the range that the search may cut off, in [0, 1].
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  uint8, the bytes from which dequantize_rows makes the rows.

Raises:
  ValueError: an argument is out of its range, or rows is not a matrix of real numbers.)");
  m.def("quantize_scorer_rows", &QuantizedForScorer, "rows"_a, py::kw_only(), IntArg("bits"),
        IntArg("num_threads") = 0, R"(Quantizes the rows of a table of a scorer.

The grid of a row is that of quantize_rows, but rows have one size each: a float32 scale, a float32
offset, and the codes. The items are offset + scale * code.

Args:
  rows: float32 [R, D], finite.
  bits: 8 or 4. Of 4 bits, byte i of the codes has the code of item i in its low half and that of
    item i + ceil(D / 2) in its high half.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  uint8 [R, 8 + D] for 8 bits, and [R, 8 + ceil(D / 2)] for 4 bits.

Raises:
  ValueError: bits is out of its range, or rows is not a matrix of finite numbers.)");
  m.def("dequantize_rows", &Dequantized, "quantized"_a, py::kw_only(), IntArg("num_threads") = 0,
        R"(Makes rows of the bytes that quantize_rows wrote.

Args:
  quantized: uint8, the bytes.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [R, D]. It does not depend on the number of threads or on the SIMD level.

Raises:
  ValueError: quantized is not an output of quantize_rows. Damaged bytes that still have the form
    of one make wrong numbers.)");
}

}  // namespace twml
