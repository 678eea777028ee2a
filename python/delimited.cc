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

Array<uint8_t> BytesOf(const ArrayLike& text) {
  auto bytes = ToArray<uint8_t>(text, "text");
  RequireRank(bytes, 1, "text");
  return bytes;
}

char DelimiterOf(const std::string& delimiter) {
  if (delimiter.size() != 1) RaiseIfError(Invalid("delimiter must be one byte"));
  return delimiter[0];
}

void CheckEnds(Span<const int64_t> ends, int64_t size) {
  int64_t before = 0;
  for (const int64_t end : ends) {
    if (end <= before || end > size) {
      RaiseIfError(
          Invalid("line_ends must increase from 1 to ", size, ", got ", end, " after ", before));
    }
    before = end;
  }
}

py::typing::Tuple<DoubleArray, Int64Array, int64_t, int64_t> Parsed(
    const ArrayLike& text, const std::string& delimiter, const std::string& kinds,
    const std::vector<std::pair<int64_t, int64_t>>& keys, const std::optional<ArrayLike>& line_ends,
    int64_t num_buckets, int num_threads) {
  const auto bytes = BytesOf(text);
  const char separator = DelimiterOf(delimiter);
  const std::vector<DelimitedColumn> columns = ColumnsOf(kinds, keys);
  const auto given = ToOptionalArray<int64_t>(line_ends, "line_ends");
  if (given) RequireRank(*given, 1, "line_ends");
  if (given) CheckEnds(SpanOf(*given), bytes.size());
  std::vector<int64_t> found;
  if (!given) {
    py::gil_scoped_release release;
    found = LineEnds(SpanOf(bytes));
  }
  const Span<const int64_t> ends = given ? SpanOf(*given) : Span<const int64_t>(found);
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
    status = ParseDelimited(SpanOf(bytes), ends, separator, columns, num_buckets,
                            Threads(num_threads), out, &bad_line, &lossy_line);
  }
  RaiseIfError(status);
  return py::make_tuple(numbers, ids, bad_line, lossy_line);
}

const char* NameOf(RowFault fault) {
  switch (fault) {
    case RowFault::kTextAfterQuote:
      return "text after quote";
    case RowFault::kLongQuote:
      return "long quote";
    case RowFault::kCarriageReturn:
      return "carriage return";
    default:
      return "";
  }
}

py::typing::Tuple<Int64Array, Int64Array, bool, int64_t, std::string, int64_t> RowsOf(
    const ArrayLike& text, const std::string& delimiter, bool inside, int64_t max_quoted) {
  const auto bytes = BytesOf(text);
  const char separator = DelimiterOf(delimiter);
  if (max_quoted < 1) RaiseIfError(Invalid("max_quoted must be at least 1, got ", max_quoted));
  CsvRows rows;
  {
    py::gil_scoped_release release;
    rows = FindCsvRows(SpanOf(bytes), separator, inside, max_quoted);
  }
  return py::make_tuple(MoveToArray(std::move(rows.ends)), MoveToArray(std::move(rows.blanks)),
                        rows.open, rows.quote, NameOf(rows.fault), rows.position);
}

}  // namespace

void BindDelimited(py::module_& m) {
  using py::literals::operator""_a;
  m.def("parse_delimited", &Parsed, "text"_a, "delimiter"_a, "kinds"_a, "keys"_a, py::kw_only(),
        "line_ends"_a = py::none(), IntArg("num_buckets") = int64_t{1} << 62,
        IntArg("num_threads") = 0,
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
        "    line_ends: int64 [R], the position after each line; None: found in the text.\n"
        "    num_buckets: of the hash.\n"
        "    num_threads: 0 is one for each core.\n\n"
        "Returns:\n"
        "    (numbers, ids, bad_line, lossy_line): float64 [R, C], NaN where a field is empty or "
        "null; int64 [R, F], -1 where a field is empty; the first line, from 0, that has other "
        "columns, or -1: from that line on the arrays are undefined; and the first line in which a "
        "'g' is an integer that float32 does not keep, or has leading zeros, or -1.\n\n"
        "Raises:\n"
        "    ValueError: an argument out of its range.");
  m.def("csv_rows", &RowsOf, "text"_a, "delimiter"_a, py::kw_only(), "inside"_a = false,
        IntArg("max_quoted") = int64_t{1} << 62,
        "Finds the rows of CSV text. A field that begins with a quote ends with one and may hold "
        "line breaks and doubled quotes; any other quote is an ordinary character.\n\n"
        "Args:\n"
        "    text: uint8 [N], whole lines.\n"
        "    delimiter: one ASCII character.\n"
        "    inside: whether the text begins within a quoted field.\n"
        "    max_quoted: how many bytes of a quoted field with line breaks may hold no quote.\n\n"
        "Returns:\n"
        "    (ends, blanks, open, quote, fault, position): int64 [R], the position after each row; "
        "int64 [B], which rows, from 0, hold nothing but spaces and TABs; whether the text ends "
        "within a quoted field, whose row is not among the ends; where the last quoted field "
        "begins, or -1; what is wrong, or an empty text: 'text after quote', 'long quote' or "
        "'carriage return'; and where that is, or -1. Nothing after it was read.\n\n"
        "Raises:\n"
        "    ValueError: an argument out of its range.");
}

}  // namespace twml
