#include "cc/core/delimited.h"

#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

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

// One line, without its end. False if it is not as the columns say.
bool ParseLine(const char* at, const char* end, char delimiter, Span<const DelimitedColumn> columns,
               int64_t num_buckets, double* numbers, int64_t* categories) {
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
      case ColumnKind::kFloat: {
        *numbers = std::numeric_limits<double>::quiet_NaN();
        const bool integer = columns[c].kind == ColumnKind::kInteger;
        if (at != stop && !(integer ? ReadInteger : ReadFloat)(at, stop, numbers)) return false;
        ++numbers;
        break;
      }
      case ColumnKind::kCategory: {
        const auto* bytes = reinterpret_cast<const uint8_t*>(at);
        *categories++ = at == stop
                            ? kMissingCategory
                            : BucketOf(SipHash24(columns[c].key, bytes, stop - at), num_buckets);
        break;
      }
    }
    at = stop + 1;
  }
  return true;
}

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

Status ParseDelimited(Span<const uint8_t> text, Span<const int64_t> line_ends, char delimiter,
                      Span<const DelimitedColumn> columns, int64_t num_buckets,
                      const ParallelFor& parallel_for, const DelimitedOut& out, int64_t* bad_line) {
  if (columns.empty()) return Invalid("columns must have at least 1 element, got 0");
  if (num_buckets < 1) return Invalid("num_buckets must be at least 1, got ", num_buckets);
  if (delimiter == '\n') return Invalid("delimiter must not be a line break");
  int64_t num_numbers = 0, num_categories = 0;
  for (const DelimitedColumn& column : columns) {
    num_numbers += column.kind == ColumnKind::kInteger || column.kind == ColumnKind::kFloat;
    num_categories += column.kind == ColumnKind::kCategory;
  }
  const auto* chars = reinterpret_cast<const char*>(text.data());
  std::atomic<int64_t> bad{line_ends.size()};
  parallel_for(line_ends.size(), 20 * columns.size(), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const char* at = chars + (line == 0 ? 0 : line_ends[line - 1]);
      const char* stop = chars + line_ends[line];
      if (stop != at && stop[-1] == '\n') --stop;
      if (stop != at && stop[-1] == '\r') --stop;
      if (ParseLine(at, stop, delimiter, columns, num_buckets, out.numbers + line * num_numbers,
                    out.categories + line * num_categories)) {
        continue;
      }
      int64_t seen = bad.load();
      while (line < seen && !bad.compare_exchange_weak(seen, line)) {
      }
      return;
    }
  });
  *bad_line = bad.load() == line_ends.size() ? -1 : bad.load();
  return Status();
}

}  // namespace twml
