// The ids of categories that a request has as strings.
#ifndef TWML_CORE_SCORER_CATEGORY_ID_H_
#define TWML_CORE_SCORER_CATEGORY_ID_H_

#include <cstdint>

#include "cc/core/scorer/step.h"
#include "cc/core/siphash.h"

namespace twml::scorer {

constexpr int64_t kMissingCategory = -1;

// The id of a category of `size` bytes, or kMissingCategory if it is empty.
inline int64_t CategoryId(const uint8_t* bytes, int64_t size, SipKey key) {
  constexpr int64_t kBuckets = int64_t{1} << 62;
  return size == 0 ? kMissingCategory : BucketOf(SipHash24(key, bytes, size), kBuckets);
}

// The same of string `i` of a column.
inline int64_t CategoryId(const StringColumn& column, int64_t i, SipKey key) {
  const int64_t begin = column.offsets[i];
  return CategoryId(column.bytes + begin, column.offsets[i + 1] - begin, key);
}

inline const StringColumn& ColumnOf(const Frame& frame, Register r) {
  return *static_cast<const StringColumn*>(frame.views[r].data);
}

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_CATEGORY_ID_H_
