#include "cc/core/delimited.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace twml {
namespace delimited_test {

constexpr SipKey kKey = {3, 4};
const std::vector<DelimitedColumn> kColumns = {{ColumnKind::kInteger, {}},
                                               {ColumnKind::kCategory, kKey},
                                               {ColumnKind::kSkip, {}},
                                               {ColumnKind::kFloat, {}}};

Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), static_cast<int64_t>(text.size())};
}

int64_t Id(const std::string& token) {
  return BucketOf(SipHash24(kKey, Bytes(token).data(), static_cast<int64_t>(token.size())), 1000);
}

struct Parsed {
  std::vector<double> numbers;
  std::vector<int64_t> categories;
  int64_t bad_line = -2, lossy_line = -2;
};

// Every line as a piece of its own, the last one first.
void Backwards(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& body) {
  for (int64_t i = total; i-- > 0;) body(i, i + 1);
}

Parsed Parse(const std::string& text, const ParallelFor& parallel_for = Serial) {
  const std::vector<int64_t> ends = LineEnds(Bytes(text));
  Parsed out{std::vector<double>(2 * ends.size()), std::vector<int64_t>(ends.size())};
  EXPECT_TRUE(ParseDelimited(Bytes(text), ends, '\t', kColumns, 1000, parallel_for,
                             {out.numbers.data(), out.categories.data()}, &out.bad_line,
                             &out.lossy_line)
                  .ok());
  return out;
}

TEST(Delimited, LinesEndBehindTheirBreak) {
  EXPECT_EQ(LineEnds(Bytes("")), (std::vector<int64_t>{}));
  EXPECT_EQ(LineEnds(Bytes("a\n\nb")), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(LineEnds(Bytes("a\n")), (std::vector<int64_t>{2}));
}

TEST(Delimited, FieldsAreRead) {
  for (const ParallelFor& parallel_for : {ParallelFor(Serial), ParallelFor(Backwards)}) {
    const Parsed out = Parse("-12\tab\tx\t+1.5e1\r\n\t\t\t\n7\t \t\t-.5", parallel_for);
    EXPECT_EQ(out.bad_line, -1);
    EXPECT_EQ(out.numbers[0], -12);
    EXPECT_EQ(out.numbers[1], 15);
    EXPECT_TRUE(std::isnan(out.numbers[2]) && std::isnan(out.numbers[3]));
    EXPECT_EQ(out.numbers[4], 7);
    EXPECT_EQ(out.numbers[5], -0.5);
    EXPECT_EQ(out.categories, (std::vector<int64_t>{Id("ab"), kMissingCategory, Id(" ")}));
  }
}

TEST(Delimited, IntegersThatAFloatDoesNotKeepAreNamed) {
  const std::vector<DelimitedColumn> columns = {{ColumnKind::kGuessed, {}},
                                                {ColumnKind::kFloat, {}}};
  const auto lossy_line = [&](const std::string& last) {
    const std::string text = "1,007\n0.5,16777217\n16777216,0\nNA,1\n1e20,1\n" + last + ",1\n";
    const std::vector<int64_t> ends = LineEnds(Bytes(text));
    std::vector<double> numbers(2 * ends.size());
    int64_t bad_line, line;
    EXPECT_TRUE(ParseDelimited(Bytes(text), ends, ',', columns, 1000, Backwards,
                               {numbers.data(), nullptr}, &bad_line, &line)
                    .ok());
    EXPECT_EQ(bad_line, -1);
    return line;
  };
  for (const std::string kept : {"0", "-0.7", "33554432", "16777217.5", ""}) {
    EXPECT_EQ(lossy_line(kept), -1) << kept;
  }
  for (const std::string lost : {"007", "-01", "16777217", "+16777217.0", "9007199254740993"}) {
    EXPECT_EQ(lossy_line(lost), 5) << lost;
  }
}

TEST(Delimited, TypedCategoriesHaveOneSpelling) {
  const std::vector<DelimitedColumn> columns = {{ColumnKind::kTyped, kKey}};
  const std::string text = "3.0\n+3\n-0.0\nTrue\n007\nNA\n\n3.5\n-\n+";
  const std::vector<int64_t> ends = LineEnds(Bytes(text));
  std::vector<int64_t> ids(ends.size());
  int64_t bad_line, lossy_line;
  ASSERT_TRUE(ParseDelimited(Bytes(text), ends, ',', columns, 1000, Serial, {nullptr, ids.data()},
                             &bad_line, &lossy_line)
                  .ok());
  EXPECT_EQ(
      ids, (std::vector<int64_t>{Id("3"), Id("3"), Id("0"), Id("true"), Id("007"), kMissingCategory,
                                 kMissingCategory, Id("3.5"), kMissingCategory, Id("+")}));
}

TEST(Delimited, TheFirstBadLineIsNamed) {
  const std::string good = "1\ta\t\t1\n";
  for (const std::string bad : {"", "1\ta\t\t", "x\ta\t\t1", "1.5\ta\t\t1", "1\ta\t\t1\t",
                                "1\ta\t1", "1\ta\t\tinf", "1\ta\t\t1x", "1\ta\t\t+-1", "1\ta\t\t+",
                                "-\ta\t\t1", "1234567890123456789\ta\t\t1", "1\ta\t\tNa"}) {
    for (const ParallelFor& parallel_for : {ParallelFor(Serial), ParallelFor(Backwards)}) {
      const std::string lines = good + good + bad + "\n" + good + "?\n";
      EXPECT_EQ(Parse(lines, parallel_for).bad_line, bad == "1\ta\t\t" ? 4 : 2) << bad;
    }
  }
}

CsvRows Rows(const std::string& text, bool inside = false, int64_t max_quoted = 100) {
  return FindCsvRows(Bytes(text), ',', inside, max_quoted);
}

TEST(CsvRows, EndOutsideOfQuotes) {
  using Ends = std::vector<int64_t>;
  EXPECT_EQ(Rows("").ends, (Ends{}));
  EXPECT_EQ(Rows("a,b\nc").ends, (Ends{4, 5}));
  EXPECT_EQ(Rows("\"a\nb\",c\r\nd\n").ends, (Ends{9, 11}));
  EXPECT_EQ(Rows("\"a\"\"\n\"\n").ends, (Ends{7}));
  EXPECT_EQ(Rows("5\",6\"\n\"\"\n").ends, (Ends{6, 9}));  // a quote that begins no field is none
  EXPECT_EQ(Rows("a\" \"\nb,\"\"").ends, (Ends{5, 9}));
  EXPECT_EQ(Rows("\n \t\r\nx\n,\n\"\"\n ").blanks, (Ends{0, 1, 5}));
  EXPECT_EQ(FindCsvRows(Bytes("\t\n\n"), '\t', false, 9).blanks, (Ends{1}));
}

TEST(CsvRows, AnOpenQuoteIsContinued) {
  const CsvRows open = Rows("a\n1,\"b\n");
  EXPECT_TRUE(open.open);
  EXPECT_EQ(open.quote, 4);
  EXPECT_EQ(open.ends, (std::vector<int64_t>{2}));
  EXPECT_EQ(Rows("c\n\",2\nd\n", true).ends, (std::vector<int64_t>{6, 8}));
  EXPECT_TRUE(Rows("c\n", true).open);
  EXPECT_TRUE(Rows("", true).open);
}

TEST(CsvRows, FaultsHaveAPlace) {
  const auto fault = [](const CsvRows& rows) { return std::make_pair(rows.fault, rows.position); };
  EXPECT_EQ(fault(Rows("a\n\"b\"c\n")), std::make_pair(RowFault::kTextAfterQuote, int64_t{5}));
  EXPECT_EQ(fault(Rows("\"b\"\rc\n")), std::make_pair(RowFault::kTextAfterQuote, int64_t{3}));
  EXPECT_EQ(fault(Rows("a\rb\n")), std::make_pair(RowFault::kCarriageReturn, int64_t{1}));
  EXPECT_EQ(fault(Rows("a\r\r\n")), std::make_pair(RowFault::kCarriageReturn, int64_t{1}));
  EXPECT_EQ(fault(Rows("a\r,\"b\"\n")), std::make_pair(RowFault::kCarriageReturn, int64_t{1}));
  EXPECT_EQ(fault(Rows("\"a\rb\"\r\nc\r")), std::make_pair(RowFault::kNone, int64_t{-1}));
  EXPECT_EQ(fault(Rows("\"12\n4\"", false, 3)), std::make_pair(RowFault::kLongQuote, int64_t{1}));
  EXPECT_EQ(fault(Rows("\"12\n\"", false, 3)).first, RowFault::kNone);
  EXPECT_EQ(fault(Rows("\"1234\"", false, 3)).first, RowFault::kNone);  // without a line break
  EXPECT_EQ(fault(Rows("\"12\n4\n", false, 3)).first, RowFault::kLongQuote);
}

TEST(Delimited, WrongArgumentsAreRefused) {
  int64_t bad_line, lossy_line;
  const auto message = [&](const std::vector<DelimitedColumn>& columns, char delimiter,
                           int64_t num_buckets) {
    return ParseDelimited(Bytes(""), {}, delimiter, columns, num_buckets, Serial, {}, &bad_line,
                          &lossy_line)
        .message();
  };
  EXPECT_EQ(message({}, ',', 1), "columns must have at least 1 element, got 0");
  EXPECT_EQ(message(kColumns, ',', 0), "num_buckets must be at least 1, got 0");
  EXPECT_EQ(message(kColumns, '\n', 1), "delimiter must not be a line break");
}

}  // namespace delimited_test
}  // namespace twml
