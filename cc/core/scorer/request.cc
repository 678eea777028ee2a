#include "cc/core/scorer/request.h"

#include <string>

#include "cc/core/csr.h"

namespace twml::scorer {
namespace {

class Checker {
 public:
  Checker(const Plan& plan, const Request& request) : plan_(plan), request_(request) {}

  // The row splits come first, as the sizes of entries follow from their last item.
  Status Check() const {
    TWML_RETURN_IF_ERROR(CheckArrays(true));
    return CheckArrays(false);
  }

 private:
  Status CheckArrays(bool row_splits) const {
    const auto& inputs = plan_.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if ((inputs[i].form == Form::kRowSplits) != row_splits) continue;
      TWML_RETURN_IF_ERROR(CheckArray(inputs[i], i, request_.arrays, request_.rows));
      if (plan_.key().ranking) {
        TWML_RETURN_IF_ERROR(CheckArray(inputs[i], i, request_.user, 1));
      }
    }
    return Status();
  }

  Status CheckArray(const ProgramInput& input, size_t i, Span<const RequestArray> arrays,
                    int64_t rows) const {
    if (input.r == kNoRegister) return Status();
    const RequestArray& array = arrays[i];
    const bool strings = input.form == Form::kStrings || input.form == Form::kBagStrings;
    const int64_t bytes = strings ? array.num_bytes : array.size;
    if (array.size < 0 || bytes < 0 || (array.data == nullptr && bytes > 0)) {
      return Invalid("'", input.name, "' has no data");
    }
    const bool user = plan_.key().ranking && arrays.data() == request_.user.data();
    const Variation variation = plan_.variation(input.r);
    if (user ? variation == Variation::kVarying : variation == Variation::kConstant) {
      if (array.data == nullptr && array.size == 0) return Status();
      return Invalid("'", input.name, "' must be given for the user or for the rows, not for both");
    }
    if (variation == Variation::kSplit && array.data == nullptr && array.size == 0) {
      // No entries. The row splits are then missing, too.
      const RequestArray* const splits =
          input.form == Form::kRowSplits ? nullptr : SplitsOf(input, arrays);
      if (splits == nullptr || LastOf(*splits) <= 0) return Status();
    }
    switch (input.form) {
      case Form::kDense: {
        const int64_t expected = rows * plan_.shapes()[input.r].width;
        if (array.size == expected) return Status();
        return Invalid("'", input.name, "' must have ", expected, " numbers for ", rows,
                       " rows, got ", array.size);
      }
      case Form::kStrings:
        if (array.size != rows * input.num_strings()) {
          return Invalid("'", input.name, "' must have ", rows * input.num_strings(), " strings, ",
                         input.num_strings(), " for each row, got ", array.size);
        }
        return CheckOffsets(input, array);
      case Form::kRowSplits:
        if (array.size != rows + 1) {
          return Invalid("'", input.name, "' must have ", rows + 1, " items, one more than rows, ",
                         "got ", array.size);
        }
        return CheckRowSplits(input, {static_cast<const int64_t*>(array.data), array.size});
      case Form::kBagStrings:
        TWML_RETURN_IF_ERROR(CheckOffsets(input, array));
        [[fallthrough]];
      case Form::kIds:
      case Form::kValues: {
        const RequestArray* const splits = SplitsOf(input, arrays);
        const int64_t last = splits == nullptr ? -1 : LastOf(*splits);
        if (array.size == last) return Status();
        if (last < 0) return Invalid("'", SplitsName(input), "' must not be empty");
        return Invalid(SplitsName(input), "[", splits->size - 1, "] must be the number of entries ",
                       array.size, ", got ", last);
      }
    }
    return Status();
  }

  // The last item of row splits, or -1.
  static int64_t LastOf(const RequestArray& splits) {
    if (splits.data == nullptr || splits.size < 1) return -1;
    return static_cast<const int64_t*>(splits.data)[splits.size - 1];
  }

  static Status CheckOffsets(const ProgramInput& input, const RequestArray& array) {
    if (array.offsets == nullptr) return Invalid("'", input.name, "' must have offsets");
    bool valid = array.offsets[0] >= 0;
    for (int64_t i = 0; i < array.size; ++i) valid &= array.offsets[i] <= array.offsets[i + 1];
    valid &= array.offsets[array.size] <= array.num_bytes;
    if (valid) return Status();
    return Invalid("the offsets of '", input.name, "' must be non-decreasing, from 0 to at most ",
                   array.num_bytes);
  }

  std::string SplitsName(const ProgramInput& input) const {
    return input.splits_input < 0 ? "row_splits" : plan_.inputs()[input.splits_input].name;
  }

  static Status CheckRowSplits(const ProgramInput& input, Span<const int64_t> splits) {
    // The last item is compared with the number of entries where they are checked.
    const Status valid = twml::CheckRowSplits(splits, splits[splits.size() - 1]);
    if (valid.ok()) return valid;
    return Invalid(input.name, ": ", valid.message());
  }

  const Plan& plan_;
  const Request& request_;
};

}  // namespace

Status CheckRequest(const Plan& plan, const Request& request) {
  return Checker(plan, request).Check();
}

}  // namespace twml::scorer
