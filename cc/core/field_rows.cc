#include "cc/core/field_rows.h"

#include <algorithm>
#include <limits>

namespace twml {
namespace {

// x mod n for x < 2^63. The product with the reciprocal, rounded down, is the quotient or one less
// (Barrett, 1986), and takes a fraction of the time of a division.
inline uint64_t Modulo(uint64_t x, uint64_t n, uint64_t reciprocal) {
  __extension__ typedef unsigned __int128 Wide;
  const auto quotient = static_cast<uint64_t>(static_cast<Wide>(x) * reciprocal >> 64);
  const uint64_t rest = x - quotient * n;
  return rest - (rest >= n ? n : 0);
}

}  // namespace

Status FieldRows::Make(Span<const int64_t> num_rows, int64_t first_row, FieldRows* fields) {
  if (num_rows.empty()) return Invalid("num_rows must have an item for each field, got none");
  if (first_row < 0) return Invalid("first_row must not be negative, got ", first_row);
  fields->fields_.clear();
  for (int64_t f = 0; f < num_rows.size(); ++f) {
    const int64_t n = num_rows[f];
    if (n < 2) return Invalid("num_rows[", f, "] must be at least 2, got ", n);
    const auto buckets = static_cast<uint64_t>(n - 1);
    fields->fields_.push_back({first_row, buckets, std::numeric_limits<uint64_t>::max() / buckets});
    if (__builtin_add_overflow(first_row, n, &first_row)) {
      return Invalid("the fields must have less than 2^63 rows, got more up to field ", f);
    }
  }
  return Status();
}

template <class Id>
void FieldRows::Find(Span<const Id> ids, const ParallelFor& parallel_for, int64_t* rows) const {
  const int64_t width = num_fields();
  parallel_for(ids.size() / width, 1 + width, [&](int64_t begin, int64_t end) {
    const Field* const fields = fields_.data();
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t f = 0; f < width; ++f) {
        const auto id = std::max<int64_t>(static_cast<int64_t>(ids[b * width + f]), -1);
        const uint64_t x = static_cast<uint64_t>(id) + 1;  // 0 for a missing value
        const Field& field = fields[f];
        // Ids that are less than the number of buckets need no division.
        const uint64_t row =
            x <= field.buckets ? x : 1 + Modulo(x - 1, field.buckets, field.reciprocal);
        rows[b * width + f] = field.first_row + static_cast<int64_t>(row);
      }
    }
  });
}

template void FieldRows::Find<int32_t>(Span<const int32_t>, const ParallelFor&, int64_t*) const;
template void FieldRows::Find<int64_t>(Span<const int64_t>, const ParallelFor&, int64_t*) const;

}  // namespace twml
