// Lines of delimited text, without quotes, to numbers and hashed categories.
#ifndef TWML_CORE_DELIMITED_H_
#define TWML_CORE_DELIMITED_H_

#include <cstdint>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/siphash.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

enum class ColumnKind {
  kSkip,      // not read
  kInteger,   // an optional '-' and 1 to 18 digits
  kFloat,     // what std::from_chars reads as a finite double, that after a '+', or a null value
  kGuessed,   // a column that is read as numbers by a guess; see `ParseDelimited`
  kCategory,  // any bytes, hashed
  kTyped,     // the same in the spelling of `TypedCategory`
};

struct DelimitedColumn {
  ColumnKind kind;
  SipKey key;  // of a category
};

// What is read: row by row, in the order of the columns of the kind.
struct DelimitedOut {
  double* numbers;      // [rows, integers and floats]; NaN where the field is empty or null
  int64_t* categories;  // [rows, categories]; -1 where the field is empty
};

constexpr int64_t kMissingCategory = -1;

// The position after each line of `text`: behind its '\n', or at the end of the text.
std::vector<int64_t> LineEnds(Span<const uint8_t> text);

// What is wrong with a row of a CSV file.
enum class RowFault {
  kNone,
  kTextAfterQuote,  // neither a delimiter nor a line end follows a closing quote
  kLongQuote,       // a quoted text with line breaks has too many bytes without a quote
  kCarriageReturn,  // a '\r' outside of quotes that is not part of a line end
};

struct CsvRows {
  std::vector<int64_t> ends;    // behind each row: behind its '\n', or at the end of the text
  std::vector<int64_t> blanks;  // which of the rows, from 0, hold nothing but spaces and TABs
  bool open = false;            // the text ends within a quoted field; its row is not in `ends`
  int64_t quote = -1;           // of the last field that was quoted: where it begins, or -1
  int64_t position = -1;        // of a fault, after which nothing was read
  RowFault fault = RowFault::kNone;
};

// Finds the rows of a text in which a field that begins with a '"' ends with one, and may contain
// delimiters, line breaks, and quotes that are doubled. Any other quote is an ordinary character.
//
// `inside`: the text begins within a quoted field. A quoted field with line breaks must have a
// quote in any `max_quoted` bytes.
CsvRows FindCsvRows(Span<const uint8_t> text, char delimiter, bool inside, int64_t max_quoted);

// Parses the lines that end at `line_ends`. A '\r' before a line's '\n' belongs to its end.
//
// *bad_line is the first line that has another number of columns than `columns`, or a number that
// cannot be read; -1 if there is none. From that line on the output is undefined. *lossy_line is
// the first line with a guessed number that could be an id which a float32 does not keep: an
// integer that is not exact, or has leading zeros; -1 if there is none.
Status ParseDelimited(Span<const uint8_t> text, Span<const int64_t> line_ends, char delimiter,
                      Span<const DelimitedColumn> columns, int64_t num_buckets,
                      const ParallelFor& parallel_for, const DelimitedOut& out, int64_t* bad_line,
                      int64_t* lossy_line);

}  // namespace twml

#endif  // TWML_CORE_DELIMITED_H_
