// The ids of categories that a request has as strings.
#ifndef TWML_CORE_SCORER_CATEGORY_ID_H_
#define TWML_CORE_SCORER_CATEGORY_ID_H_

#include <cstdint>

#include "cc/core/category_text.h"
#include "cc/core/scorer/step.h"
#include "cc/core/siphash.h"

namespace twml::scorer {

constexpr int64_t kMissingCategory = -1;

// How the categories of a column are hashed.
struct CategoryHash {
  CategoryHash(SipKey of_key = {}, bool is_typed = false) : key(of_key), typed(is_typed) {}

  SipKey key;
  bool typed;  // in the spelling of `TypedCategory`
};

// The id of a category of `size` bytes, or kMissingCategory if it is empty.
inline int64_t CategoryId(const uint8_t* bytes, int64_t size, CategoryHash hash) {
  constexpr int64_t kBuckets = int64_t{1} << 62;
  if (hash.typed) {
    const auto token =
        TypedCategory({reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)});
    bytes = reinterpret_cast<const uint8_t*>(token.data());
    size = static_cast<int64_t>(token.size());
  }
  return size == 0 ? kMissingCategory : BucketOf(SipHash24(hash.key, bytes, size), kBuckets);
}

// The same of string `i` of a column.
inline int64_t CategoryId(const StringColumn& column, int64_t i, CategoryHash hash) {
  const int64_t begin = column.offsets[i];
  return CategoryId(column.bytes + begin, column.offsets[i + 1] - begin, hash);
}

inline const StringColumn& ColumnOf(const Frame& frame, Register r) {
  return *static_cast<const StringColumn*>(frame.views[r].data);
}

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_CATEGORY_ID_H_
