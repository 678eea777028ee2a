// A request for predictions, and its checks.
#ifndef TWML_CORE_SCORER_REQUEST_H_
#define TWML_CORE_SCORER_REQUEST_H_

#include <cstdint>
#include <vector>

#include "cc/core/scorer/plan.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml::scorer {

// An array of a request.
struct RequestArray {
  // Dense: float, int64_t or uint8_t [rows, …]. Ids: int64_t. Values: float. Row splits: int64_t
  // [rows + 1]. Strings: the bytes of all of them.
  const void* data = nullptr;
  int64_t size = 0;  // the number of items, or of strings
  // Strings: the offset of each, and the end of the last one, [size + 1]; and the number of bytes.
  const int64_t* offsets = nullptr;
  int64_t num_bytes = 0;
  // The shape of a row of a dense array, if the scorer does not know it. Null: a vector.
  const std::vector<int64_t>* dims = nullptr;
};

// The arrays of a request, in the order of Scorer::features or Scorer::columns.
struct Request {
  bool raw = false;  // `arrays` are columns
  Span<const RequestArray> arrays;
  // For a ranking request, the user's part of each array, or no items. Of sparse batches, each row
  // has the user's entries, followed by its own; either may have none. Of all other arrays, one of
  // the two parts is given, and the other has no data.
  Span<const RequestArray> user;
  int64_t rows = 0;
};

constexpr bool IsSparse(Form form) {
  return form == Form::kIds || form == Form::kValues || form == Form::kRowSplits ||
         form == Form::kBagStrings;
}

// The row splits of entries among the arrays of a part of a request, or null.
inline const RequestArray* SplitsOf(const ProgramInput& input, Span<const RequestArray> arrays) {
  return input.splits_input < 0 ? nullptr : &arrays[input.splits_input];
}

// Checks the sizes and the row splits of all arrays. Ids are checked by the steps that read them.
Status CheckRequest(const Plan& plan, const Request& request);

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_REQUEST_H_
