// The rows of fields that share one table.
#ifndef TWML_CORE_FIELD_ROWS_H_
#define TWML_CORE_FIELD_ROWS_H_

#include <cstdint>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// Field f has num_rows[f] rows, which follow the rows of the fields before it. Its first row is
// that of a missing value (a negative id); other ids have the row 1 + id mod (num_rows[f] - 1).
class FieldRows {
 public:
  // `first_row` is the first row of the first field.
  static Status Make(Span<const int64_t> num_rows, int64_t first_row, FieldRows* fields);

  int64_t num_fields() const { return static_cast<int64_t>(fields_.size()); }

  // Writes the row of each id, of which there are a multiple of num_fields(): id k is one of field
  // k mod num_fields().
  template <class Id>
  void Find(Span<const Id> ids, const ParallelFor& parallel_for, int64_t* rows) const;

 private:
  struct Field {
    int64_t first_row;
    uint64_t buckets;     // num_rows - 1
    uint64_t reciprocal;  // of `buckets`, as a fraction of 2^64
  };
  std::vector<Field> fields_;
};

}  // namespace twml

#endif  // TWML_CORE_FIELD_ROWS_H_
