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
  kGuessed,   // a float that nobody has declared to be one; see `ParseDelimited`
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
