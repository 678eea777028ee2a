// Text of users: delimited lines, rows of CSV, categories, times.
#include <time.h>

#include <cmath>

#include "cc/core/category_text.h"
#include "cc/core/delimited.h"
#include "cc/core/siphash.h"
#include "cc/core/time_text.h"
#include "tests/fuzz/targets.h"

namespace twml::fuzz {
namespace {

constexpr int64_t kBuckets = 1000;

int64_t Bucket(SipKey key, std::string_view token) {
  const Span<const uint8_t> bytes = BytesOf(token);
  return BucketOf(SipHash24(key, bytes.data(), bytes.size()), kBuckets);
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// What `kFloat` reads, by strtod and the grammar of the numbers.
bool ReferenceFloat(std::string_view text, double* out) {
  *out = std::nan("");
  if (text.empty() || IsNull(text)) return true;
  std::string_view rest = text;
  if (rest[0] == '+') {
    rest.remove_prefix(1);
    if (!rest.empty() && rest[0] == '-') return false;
  }
  const std::string number(rest);
  for (const char c : number) {
    if (std::string_view("0123456789+-.eE").find(c) == std::string_view::npos) return false;
  }
  if (number.empty() || number[0] == '+') return false;
  char* end = nullptr;
  *out = std::strtod(number.c_str(), &end);
  if (*end != '\0' || !std::isfinite(*out)) return false;
  // std::from_chars also refuses numbers that are too small for a double.
  const size_t exponent = number.find_first_of("eE");
  const bool zero = number.substr(0, exponent).find_first_of("123456789") == std::string::npos;
  return zero || *out != 0;
}

// One line, field by field.
bool ReferenceLine(std::string_view line, char delimiter,
                   const std::vector<DelimitedColumn>& columns, std::vector<double>* numbers,
                   std::vector<int64_t>* categories) {
  size_t at = 0;
  for (size_t c = 0; c < columns.size(); ++c) {
    const size_t stop = line.find(delimiter, at);
    if ((c + 1 == columns.size()) != (stop == line.npos)) return false;
    const std::string_view field = line.substr(at, stop == line.npos ? stop : stop - at);
    at = stop + 1;
    double number = std::nan("");
    switch (columns[c].kind) {
      case ColumnKind::kSkip:
        break;
      case ColumnKind::kInteger: {
        const std::string_view digits = field.substr(!field.empty() && field[0] == '-');
        if (!field.empty()) {
          if (!IsDigits(digits) || digits.size() > 18) return false;
          number = static_cast<double>(std::strtoll(std::string(field).c_str(), nullptr, 10));
        }
        numbers->push_back(number);
        break;
      }
      case ColumnKind::kFloat:
      case ColumnKind::kGuessed:
        if (!ReferenceFloat(field, &number)) return false;
        numbers->push_back(number);
        break;
      case ColumnKind::kCategory:
      case ColumnKind::kTyped: {
        const std::string_view token =
            columns[c].kind == ColumnKind::kTyped ? TypedCategory(field) : field;
        categories->push_back(token.empty() ? -1 : Bucket(columns[c].key, token));
      }
    }
  }
  return true;
}

void Lines(Input input) {
  constexpr std::string_view kDelimiters = "\t, ;|";
  const char delimiter = kDelimiters[static_cast<size_t>(input.Below(5))];
  std::vector<DelimitedColumn> columns(static_cast<size_t>(1 + input.Below(5)));
  for (auto& column : columns) {
    column = {static_cast<ColumnKind>(input.Below(6)), {1, static_cast<uint64_t>(input.Below(9))}};
  }
  const std::string text(input.Rest());  // its end is the end of the memory
  const std::vector<int64_t> ends = LineEnds(BytesOf(text));
  std::vector<double> numbers;
  std::vector<int64_t> categories;
  int64_t bad = -1, begin = 0;
  for (size_t i = 0; i < ends.size() && bad < 0; ++i) {
    std::string_view line = std::string_view(text).substr(begin, ends[i] - begin);
    begin = ends[i];
    if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!ReferenceLine(line, delimiter, columns, &numbers, &categories)) bad = i;
  }
  TWML_REQUIRE(begin == static_cast<int64_t>(text.size()) || bad >= 0);
  for (const ParallelFor& parallel_for : {ParallelFor(Serial), ParallelFor(Backwards)}) {
    std::vector<double> got(columns.size() * ends.size());
    std::vector<int64_t> ids(columns.size() * ends.size());
    int64_t bad_line = -2, lossy_line = -2;
    const Status status =
        ParseDelimited(BytesOf(text), ends, delimiter, columns, kBuckets, parallel_for,
                       {got.data(), ids.data()}, &bad_line, &lossy_line);
    TWML_REQUIRE(status.ok() && bad_line == bad);
    if (bad >= 0) continue;
    for (size_t i = 0; i < numbers.size(); ++i) {
      TWML_REQUIRE(got[i] == numbers[i] || (std::isnan(got[i]) && std::isnan(numbers[i])));
    }
    for (size_t i = 0; i < categories.size(); ++i) TWML_REQUIRE(ids[i] == categories[i]);
  }
}

std::vector<std::string> LineSeeds() {
  const auto seed = [](std::vector<uint8_t> head, std::string_view text) {
    return Output().PutAll(head).Text(text).bytes();
  };
  return {seed({0, 3, 1, 0, 4, 1, 0, 0, 2, 0}, "-12\tab\tx\t+1.5e1\r\n\t\t\t\n7\t \t\t-.5"),
          seed({1, 1, 3, 0, 5, 0}, "007,3.0\n16777217,True\n1e20,NA\nNaN,-0\n"),
          seed({1, 0, 2, 0}, "1e-400\n1e400\n.5\n5.\n-\n+1\n0x1p3\ninf\n"), ""};
}

// The rows of a text, character by character.
CsvRows ReferenceRows(std::string_view text, char delimiter, bool inside, int64_t most) {
  CsvRows rows;
  const auto size = static_cast<int64_t>(text.size());
  const auto fault = [&](RowFault what, int64_t at) {
    rows.fault = what;
    rows.position = at;
    return rows;
  };
  int64_t row = 0, since = 0;  // since: what follows the last quote in a quoted field
  bool quoted = inside, any_quotes = inside, field_begins = !inside;
  for (int64_t i = 0; i < size; ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"') continue;
      if (i - since > most && text.substr(since, i - since).find('\n') != text.npos) {
        return fault(RowFault::kLongQuote, since);
      }
      if (i + 1 < size && text[i + 1] == '"') {
        since = ++i + 1;
        continue;
      }
      quoted = false;
      field_begins = false;
      if (i + 1 == size) break;
      const char next = text[i + 1];
      const bool ends = next == '\n' || (next == '\r' && (i + 2 == size || text[i + 2] == '\n'));
      if (!ends && next != delimiter) return fault(RowFault::kTextAfterQuote, i + 1);
      continue;
    }
    if (c == '"' && field_begins) {
      quoted = any_quotes = true;
      rows.quote = i;
      since = i + 1;
      continue;
    }
    field_begins = c == delimiter;
    if (c == '\r' && i + 1 < size && text[i + 1] != '\n')
      return fault(RowFault::kCarriageReturn, i);
    if (c == '\n') {
      std::string_view line = text.substr(row, i - row);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      bool blank = !any_quotes;
      for (const char x : line) blank = blank && (x == ' ' || x == '\t') && x != delimiter;
      if (blank) rows.blanks.push_back(static_cast<int64_t>(rows.ends.size()));
      rows.ends.push_back(row = i + 1);
      any_quotes = false;
      field_begins = true;
    }
  }
  if (quoted) {
    if (size - since > most && text.substr(since).find('\n') != text.npos) {
      return fault(RowFault::kLongQuote, since);
    }
    rows.open = true;
  } else if (row < size) {
    std::string_view line = text.substr(row);
    if (line.back() == '\r') line.remove_suffix(1);
    bool blank = !any_quotes;
    for (const char x : line) blank = blank && (x == ' ' || x == '\t') && x != delimiter;
    if (blank) rows.blanks.push_back(static_cast<int64_t>(rows.ends.size()));
    rows.ends.push_back(size);
  }
  return rows;
}

void Rows(Input input) {
  constexpr std::string_view kDelimiters = ",\t; ";
  const char delimiter = kDelimiters[static_cast<size_t>(input.Below(4))];
  const bool inside = input.Below(2) == 1;
  const int64_t most = 1 + input.Below(64);
  const std::string text(input.Rest());
  const CsvRows got = FindCsvRows(BytesOf(text), delimiter, inside, most);
  const CsvRows want = ReferenceRows(text, delimiter, inside, most);
  TWML_REQUIRE(got.fault == want.fault && got.position == want.position);
  TWML_REQUIRE(got.quote == want.quote);
  if (want.fault != RowFault::kNone) return;
  TWML_REQUIRE(got.ends == want.ends && got.blanks == want.blanks && got.open == want.open);
}

std::vector<std::string> RowSeeds() {
  const std::string text = "a,\"b\n\"\"c\"\"\",d\r\n \t\n\n1,2\"3,\"\"\n\"x\",\"y\nz";
  return {Output().Put('\0').Put('\0').Put('\x20').Text(text).bytes(),
          Output().Put('\1').Put('\1').Put('\4').Text("k\"\t\"a\nbcdefgh\"\n1\r2").bytes()};
}

void Categories(Input input) {
  const SipKey key = {input.Take<uint64_t>(), input.Take<uint64_t>()};
  const auto cuts = input.Array<uint8_t>(input.Below(6));
  const std::string text(input.Rest());
  std::vector<int64_t> offsets = {0};
  for (const uint8_t cut : cuts) {
    offsets.push_back(std::min<int64_t>(offsets.back() + cut % 16, text.size()));
  }
  const std::vector<int32_t> narrow(offsets.begin(), offsets.end());
  for (const bool typed : {false, true}) {
    std::vector<int64_t> out(cuts.size()), other(cuts.size());
    TWML_REQUIRE(
        HashStrings<int64_t>(BytesOf(text), offsets, key, kBuckets, Serial, out.data(), typed)
            .ok());
    TWML_REQUIRE(
        HashStrings<int32_t>(BytesOf(text), narrow, key, kBuckets, Backwards, other.data(), typed)
            .ok());
    TWML_REQUIRE(out == other);
    for (size_t i = 0; i < cuts.size(); ++i) {
      std::string_view token =
          std::string_view(text).substr(offsets[i], offsets[i + 1] - offsets[i]);
      if (typed) token = TypedCategory(token);
      TWML_REQUIRE(out[i] == Bucket(key, std::string(token)));
      if (typed) TWML_REQUIRE(TypedCategory(token) == token);
    }
  }
}

std::vector<std::string> CategorySeeds() {
  return {std::string(16, '\1') + "\4\4\3\2\5True-07.0NA\\N+3.00x", ""};
}

void Times(Input input) {
  const TimeFeature feature = {static_cast<TimePart>(input.Below(4)),
                               static_cast<TimeUnit>(input.Below(6))};
  const std::string text(input.Rest());
  const int64_t got = PartOfTime(text, feature);
  TWML_REQUIRE(got >= kUnreadableTime && got < LimitOf(feature.part));
  TWML_REQUIRE(PartOfTime(" " + text + "\n", feature) == got);
  // The bytes as a time, written and read again.
  time_t seconds = input.Take<int64_t>() % 250'000'000'000;
  struct tm parts;
  if (seconds < -62'000'000'000 || gmtime_r(&seconds, &parts) == nullptr) return;
  const int64_t weekday = (parts.tm_wday + 6) % 7;
  const int64_t wanted[] = {parts.tm_hour, weekday + 1, parts.tm_mon + 1,
                            weekday * 24 + parts.tm_hour};
  const int64_t want = wanted[static_cast<int>(feature.part)];
  char written[64];
  for (const char* form : {"%m/%d/%Y %H:%M:%S", "%d.%m.%Y %I:%M:%S %p", "%Y-%m-%dT%H:%M:%SZ"}) {
    const int64_t year = parts.tm_year + 1900;
    if (year < 1000 || year > 9999) break;
    strftime(written, sizeof(written), form, &parts);
    TWML_REQUIRE(PartOfTime(written, feature) == want);
  }
  const std::string number = std::to_string(seconds);
  TWML_REQUIRE(PartOfTime(number, {feature.part, TimeUnit::kSeconds}) == want);
  // A fraction belongs to the second before it.
  const std::string fraction = std::to_string(std::abs(seconds)) + (seconds < 0 ? ".0" : ".9");
  TWML_REQUIRE(
      PartOfTime((seconds < 0 ? "-" : "") + fraction, {feature.part, TimeUnit::kSeconds}) == want);
}

std::vector<std::string> TimeSeeds() {
  std::vector<std::string> seeds;
  for (const char* text :
       {"2024-02-29T23:59:59.999+05:30", "12/31/1999 11:59 PM", "1.2.2003", "20240229",
        "-1700000000.5", "9223372036854775807", "1700000000000 ", "2001-9-9 1:46 UTC"}) {
    for (const char unit : {0, 1, 5}) {
      seeds.push_back(
          Output().Put(static_cast<char>(seeds.size() % 4)).Put(unit).Text(text).bytes());
    }
  }
  return seeds;
}

}  // namespace

std::vector<Target> TextTargets() {
  return {{"lines", Lines, LineSeeds},
          {"csv_rows", Rows, RowSeeds},
          {"categories", Categories, CategorySeeds},
          {"times", Times, TimeSeeds}};
}

}  // namespace twml::fuzz
