#include "cc/core/delimited.h"

#include <string>
#include <utility>
#include <vector>

#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

std::vector<DelimitedColumn> ColumnsOf(const std::string& kinds,
                                       const std::vector<std::pair<int64_t, int64_t>>& keys) {
  std::vector<DelimitedColumn> columns;
  size_t used = 0;
  for (const char kind : kinds) {
    if ((kind == 'c' || kind == 't') && used == keys.size()) {
      RaiseIfError(Invalid("keys must have one for each category, got ", keys.size()));
    }
    switch (kind) {
      case '-':
        columns.push_back({ColumnKind::kSkip, {}});
        break;
      case 'i':
        columns.push_back({ColumnKind::kInteger, {}});
        break;
      case 'f':
        columns.push_back({ColumnKind::kFloat, {}});
        break;
      case 'g':
        columns.push_back({ColumnKind::kGuessed, {}});
        break;
      case 'c':
      case 't':
        columns.push_back(
            {kind == 'c' ? ColumnKind::kCategory : ColumnKind::kTyped,
             {static_cast<uint64_t>(keys[used].first), static_cast<uint64_t>(keys[used].second)}});
        ++used;
        break;
      default:
        RaiseIfError(
            Invalid("kinds must consist of 'i', 'f', 'g', 'c', 't' and '-', got '", kind, "'"));
    }
  }
  if (used < keys.size()) {
    RaiseIfError(
        Invalid("keys must have one for each of ", used, " categories, got ", keys.size()));
  }
  return columns;
}

py::typing::Tuple<DoubleArray, Int64Array, int64_t, int64_t> Parsed(
    const ArrayLike& text, const std::string& delimiter, const std::string& kinds,
    const std::vector<std::pair<int64_t, int64_t>>& keys, int64_t num_buckets, int num_threads) {
  const auto bytes = ToArray<uint8_t>(text, "text");
  RequireRank(bytes, 1, "text");
  if (delimiter.size() != 1) RaiseIfError(Invalid("delimiter must be one byte"));
  const std::vector<DelimitedColumn> columns = ColumnsOf(kinds, keys);
  std::vector<int64_t> ends;
  {
    py::gil_scoped_release release;
    ends = LineEnds(SpanOf(bytes));
  }
  const auto rows = static_cast<py::ssize_t>(ends.size());
  const auto categories = static_cast<py::ssize_t>(keys.size());
  py::ssize_t number_columns = 0;
  for (const char kind : kinds) number_columns += kind == 'i' || kind == 'f' || kind == 'g';
  py::array_t<double> numbers({rows, number_columns});
  py::array_t<int64_t> ids({rows, categories});
  const DelimitedOut out{numbers.mutable_data(), ids.mutable_data()};
  int64_t bad_line = -1, lossy_line = -1;
  Status status;
  {
    py::gil_scoped_release release;
    status = ParseDelimited(SpanOf(bytes), ends, delimiter[0], columns, num_buckets,
                            Threads(num_threads), out, &bad_line, &lossy_line);
  }
  RaiseIfError(status);
  return py::make_tuple(numbers, ids, bad_line, lossy_line);
}

}  // namespace

void BindDelimited(py::module_& m) {
  using py::literals::operator""_a;
  m.def("parse_delimited", &Parsed, "text"_a, "delimiter"_a, "kinds"_a, "keys"_a, py::kw_only(),
        IntArg("num_buckets") = int64_t{1} << 62, IntArg("num_threads") = 0,
        "Parses lines of delimited text without quotes into numbers and hashed categories.\n\n"
        "Args:\n"
        "    text: uint8 [N], whole lines.\n"
        "    delimiter: one ASCII character.\n"
        "    kinds: one character for each column: 'i' an integer of at most 18 digits, 'f' a "
        "finite number or a usual null value, 'g' the same where it is a guess that the column is "
        "one of "
        "numbers, 'c' a category, 't' a category of integers or bools (`3.0` is `3`, `True` is "
        "`true`), '-' a column that is not read.\n"
        "    keys: for each category the key of its hash, as of `hash_strings`.\n"
        "    num_buckets: of the hash.\n"
        "    num_threads: 0 is one for each core.\n\n"
        "Returns:\n"
        "    (numbers, ids, bad_line, lossy_line): float64 [R, C], NaN where a field is empty or "
        "null; int64 [R, F], -1 where a field is empty; the first line, from 0, that has other "
        "columns, or -1: from that line on the arrays are undefined; and the first line in which a "
        "'g' is an integer that float32 does not keep, or has leading zeros, or -1.\n\n"
        "Raises:\n"
        "    ValueError: an argument out of its range.");
}

}  // namespace twml
