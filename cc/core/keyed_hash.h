// The hash function of hash tables, keyed with a random number so that chosen ids cannot collide.
#ifndef TWML_CORE_KEYED_HASH_H_
#define TWML_CORE_KEYED_HASH_H_

#include <cstdint>

#include "cc/core/hash.h"

namespace twml {

// The random key of this process, drawn once. Results must not depend on it. Only hash tables that
// look up single ids, and are never iterated, may use it.
uint64_t ProcessHashKey() noexcept;

// The hash function of one table. It holds a copy of the key, next to the table's slots in memory.
class KeyedHash {
 public:
  KeyedHash() = default;
  // With a public key, for ids that no attacker chooses and results that are the same in
  // every process.
  explicit KeyedHash(uint64_t key) : key_(key) {}
  uint64_t operator()(int64_t id) const { return Mix64(static_cast<uint64_t>(id) ^ key_); }

 private:
  uint64_t key_ = ProcessHashKey();
};

}  // namespace twml

#endif  // TWML_CORE_KEYED_HASH_H_
