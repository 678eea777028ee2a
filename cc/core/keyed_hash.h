// The random key of this process's hash tables, which prevents ids chosen to collide.
#ifndef TWML_CORE_KEYED_HASH_H_
#define TWML_CORE_KEYED_HASH_H_

#include <cstdint>

#include "cc/core/hash.h"

namespace twml {

// Drawn once. It must not be visible in a result: only tables that are asked for single ids, and
// never walked through, may use it.
uint64_t ProcessHashKey() noexcept;

// The hash of ids in one table, which keeps the key beside its slots.
class KeyedHash {
 public:
  uint64_t operator()(int64_t id) const { return Mix64(static_cast<uint64_t>(id) ^ key_); }

 private:
  uint64_t key_ = ProcessHashKey();
};

}  // namespace twml

#endif  // TWML_CORE_KEYED_HASH_H_
