#include "cc/core/delimited.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "cc/core/category_text.h"

namespace twml {
namespace {

constexpr int kMaxDigits = 18;  // that always fit into an int64_t

bool ReadInteger(const char* begin, const char* end, double* out) {
  const bool negative = *begin == '-';
  begin += negative;
  if (begin == end || end - begin > kMaxDigits) return false;
  int64_t value = 0;
  for (; begin != end; ++begin) {
    const int digit = *begin - '0';
    if (digit < 0 || digit > 9) return false;
    value = 10 * value + digit;
  }
  *out = static_cast<double>(negative ? -value : value);
  return true;
}

bool ReadFloat(const char* begin, const char* end, double* out) {
  if (*begin == '+') {
    if (++begin == end || *begin == '-') return false;
  }
  const auto [stop, error] = std::from_chars(begin, end, *out);
  return error == std::errc() && stop == end && std::isfinite(*out);
}

// Whether a float32 of a number that was read loses what tells it apart as an id.
bool IsLossy(const char* begin, const char* end, double value) {
  begin += *begin == '-' || *begin == '+';
  if (end - begin > 1 && *begin == '0' && begin[1] >= '0' && begin[1] <= '9') return true;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (end - begin > 15 && std::all_of(begin, end, digit)) return true;  // a double rounds it
  if (std::trunc(value) != value || static_cast<double>(static_cast<float>(value)) == value) {
    return false;
  }
  return std::none_of(begin, end, [](char c) { return c == 'e' || c == 'E'; });
}

// Sets `first` to `line` if that is smaller.
void KeepFirst(int64_t line, std::atomic<int64_t>* first) {
  int64_t seen = first->load();
  while (line < seen && !first->compare_exchange_weak(seen, line)) {
  }
}

// One line, without its end. False if it is not as the columns say.
bool ParseLine(const char* at, const char* end, char delimiter, Span<const DelimitedColumn> columns,
               int64_t num_buckets, double* numbers, int64_t* categories, bool* lossy) {
  for (int64_t c = 0; c < columns.size(); ++c) {
    const auto left = static_cast<size_t>(end - at);
    const auto* found =
        left == 0 ? nullptr : static_cast<const char*>(std::memchr(at, delimiter, left));
    const bool last = c + 1 == columns.size();
    if (last != (found == nullptr)) return false;
    const char* stop = last ? end : found;
    switch (columns[c].kind) {
      case ColumnKind::kSkip:
        break;
      case ColumnKind::kInteger:
      case ColumnKind::kFloat:
      case ColumnKind::kGuessed: {
        double* const number = numbers++;
        *number = std::numeric_limits<double>::quiet_NaN();
        if (at == stop) break;
        if (columns[c].kind == ColumnKind::kInteger) {
          if (!ReadInteger(at, stop, number)) return false;
        } else if (ReadFloat(at, stop, number)) {
          *lossy |= columns[c].kind == ColumnKind::kGuessed && IsLossy(at, stop, *number);
        } else if (IsNull({at, static_cast<size_t>(stop - at)})) {
          *number = std::numeric_limits<double>::quiet_NaN();
        } else {
          return false;
        }
        break;
      }
      case ColumnKind::kCategory:
      case ColumnKind::kTyped: {
        std::string_view token(at, static_cast<size_t>(stop - at));
        if (columns[c].kind == ColumnKind::kTyped) token = TypedCategory(token);
        const auto* bytes = reinterpret_cast<const uint8_t*>(token.data());
        *categories++ =
            token.empty()
                ? kMissingCategory
                : BucketOf(SipHash24(columns[c].key, bytes, static_cast<int64_t>(token.size())),
                           num_buckets);
        break;
      }
    }
    at = stop + 1;
  }
  return true;
}

const char* Find(const char* at, const char* end, char wanted) {
  if (at == end) return end;
  const void* found = std::memchr(at, wanted, static_cast<size_t>(end - at));
  return found == nullptr ? end : static_cast<const char*>(found);
}

// The reading of one text into its rows.
class CsvRowFinder {
 public:
  CsvRowFinder(const char* begin, const char* end, char delimiter, int64_t max_quoted)
      : begin_(begin),
        end_(end),
        row_(begin),
        next_quote_(Find(begin, end, '"')),
        has_returns_(Find(begin, end, '\r') != end),
        delimiter_(delimiter),
        max_quoted_(max_quoted) {}

  CsvRows FindRows(bool inside) {
    const char* at = begin_;
    if (!inside || ReadQuoted(&at)) {
      while (at != end_ && ReadUnquoted(&at)) {
      }
    }
    return rows_;
  }

 private:
  // To the end of a row, or to the end of a quoted field in it. False if there is nothing more.
  bool ReadUnquoted(const char** at) {
    const char* line_end = Find(*at, end_, '\n');
    if (next_quote_ < *at) next_quote_ = Find(*at, end_, '"');
    while (next_quote_ < line_end) {
      const char* quote = next_quote_;
      if (quote == row_ || quote[-1] == delimiter_) {
        if (!NoReturn(*at, quote)) return false;
        rows_.quote = quote - begin_;
        *at = quote + 1;
        return ReadQuoted(at);
      }
      next_quote_ = Find(quote + 1, end_, '"');
    }
    const char* stop = line_end;
    if (stop != *at && stop[-1] == '\r') --stop;
    if (!NoReturn(*at, stop)) return false;
    if (*at == row_ && IsBlank(row_, stop)) {
      rows_.blanks.push_back(static_cast<int64_t>(rows_.ends.size()));
    }
    EndRow(line_end == end_ ? end_ : line_end + 1);
    *at = row_;
    return true;
  }

  // From within a quoted field to the position after its closing quote.
  bool ReadQuoted(const char** at) {
    for (const char* from = *at;;) {
      const char* quote = Find(from, end_, '"');
      if (quote - from > max_quoted_ && Find(from, quote, '\n') != quote) {
        return Stop(RowFault::kLongQuote, from);
      }
      if (quote == end_) {
        rows_.open = true;
        return false;
      }
      const char* next = quote + 1;
      if (next != end_ && *next == '"') {
        from = next + 1;
        continue;
      }
      *at = next;
      if (next == end_) {
        EndRow(end_);
        return false;
      }
      const bool ends_line =
          *next == '\n' || (*next == '\r' && (next + 1 == end_ || next[1] == '\n'));
      if (ends_line || *next == delimiter_) return true;
      return Stop(RowFault::kTextAfterQuote, next);
    }
  }

  bool NoReturn(const char* at, const char* stop) {
    if (!has_returns_) return true;
    const char* found = Find(at, stop, '\r');
    return found == stop || Stop(RowFault::kCarriageReturn, found);
  }

  bool IsBlank(const char* at, const char* stop) const {
    while (at != stop && (*at == ' ' || *at == '\t') && *at != delimiter_) ++at;
    return at == stop;
  }

  bool Stop(RowFault fault, const char* at) {
    rows_.fault = fault;
    rows_.position = at - begin_;
    return false;
  }

  void EndRow(const char* end) {
    rows_.ends.push_back(end - begin_);
    row_ = end;
  }

  const char *begin_, *end_;
  const char* row_;         // where the row begins that is read
  const char* next_quote_;  // the first one that may matter, where it is not behind
  bool has_returns_;
  char delimiter_;
  int64_t max_quoted_;
  CsvRows rows_;
};

}  // namespace

std::vector<int64_t> LineEnds(Span<const uint8_t> text) {
  std::vector<int64_t> ends;
  const uint8_t* at = text.begin();
  while (at != text.end()) {
    const auto left = static_cast<size_t>(text.end() - at);
    const auto* found = static_cast<const uint8_t*>(std::memchr(at, '\n', left));
    at = found == nullptr ? text.end() : found + 1;
    ends.push_back(at - text.begin());
  }
  return ends;
}

CsvRows FindCsvRows(Span<const uint8_t> text, char delimiter, bool inside, int64_t max_quoted) {
  const auto* begin = reinterpret_cast<const char*>(text.data());
  return CsvRowFinder(begin, begin + text.size(), delimiter, max_quoted).FindRows(inside);
}

Status ParseDelimited(Span<const uint8_t> text, Span<const int64_t> line_ends, char delimiter,
                      Span<const DelimitedColumn> columns, int64_t num_buckets,
                      const ParallelFor& parallel_for, const DelimitedOut& out, int64_t* bad_line,
                      int64_t* lossy_line) {
  if (columns.empty()) return Invalid("columns must have at least 1 element, got 0");
  if (num_buckets < 1) return Invalid("num_buckets must be at least 1, got ", num_buckets);
  if (delimiter == '\n') return Invalid("delimiter must not be a line break");
  int64_t num_numbers = 0, num_categories = 0;
  for (const DelimitedColumn& column : columns) {
    const bool category = column.kind == ColumnKind::kCategory || column.kind == ColumnKind::kTyped;
    num_categories += category;
    num_numbers += !category && column.kind != ColumnKind::kSkip;
  }
  const auto* chars = reinterpret_cast<const char*>(text.data());
  std::atomic<int64_t> bad{line_ends.size()}, first_lossy{line_ends.size()};
  parallel_for(line_ends.size(), 20 * columns.size(), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const char* at = chars + (line == 0 ? 0 : line_ends[line - 1]);
      const char* stop = chars + line_ends[line];
      if (stop != at && stop[-1] == '\n') --stop;
      if (stop != at && stop[-1] == '\r') --stop;
      bool lossy = false;
      if (!ParseLine(at, stop, delimiter, columns, num_buckets, out.numbers + line * num_numbers,
                     out.categories + line * num_categories, &lossy)) {
        KeepFirst(line, &bad);
        return;
      }
      if (lossy) KeepFirst(line, &first_lossy);
    }
  });
  *bad_line = bad.load() == line_ends.size() ? -1 : bad.load();
  *lossy_line = first_lossy.load() == line_ends.size() ? -1 : first_lossy.load();
  return Status();
}

}  // namespace twml
