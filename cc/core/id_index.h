// A hash table that numbers ids.
#ifndef TWML_CORE_ID_INDEX_H_
#define TWML_CORE_ID_INDEX_H_

#include <cstdint>
#include <vector>

#include "cc/core/keyed_hash.h"

namespace twml {

// Maps any int64 ids to 0, 1, 2, … in the order in which they are added. The table uses open
// addressing with linear probing and is at most half full. The hash is keyed, so ids that were
// chosen to collide do not make it slow.
class IdIndex {
 public:
  int64_t size() const { return size_; }

  uint64_t Hash(int64_t id) const { return hash_(id); }

  // The number of an id, or -1 if it was not added.
  int64_t Find(int64_t id) const { return Find(id, Hash(id)); }
  int64_t Find(int64_t id, uint64_t hash) const {
    for (uint64_t at = hash;; ++at) {
      const Slot& slot = slots_[at & mask_];
      if (slot.number < 0 || slot.id == id) return slot.number;
    }
  }

  // The number of an id. An id that was not added before gets the next number.
  int64_t FindOrAdd(int64_t id) {
    for (uint64_t at = Hash(id);; ++at) {
      Slot& slot = slots_[at & mask_];
      if (slot.number < 0) {
        if (2 * static_cast<uint64_t>(size_ + 1) > slots_.size()) {
          Resize(4 * slots_.size());  // if it throws, nothing has changed
          return FindOrAdd(id);
        }
        slot = {id, size_++};
        return slot.number;
      }
      if (slot.id == id) return slot.number;
    }
  }

  // Makes room for `size` ids.
  void Reserve(int64_t size) {
    uint64_t capacity = slots_.size();
    while (capacity < 2 * static_cast<uint64_t>(size)) capacity *= 2;
    if (capacity > slots_.size()) Resize(capacity);
  }

  __attribute__((always_inline)) void Prefetch(uint64_t hash) const {
    __builtin_prefetch(&slots_[hash & mask_]);
  }

  int64_t bytes() const { return static_cast<int64_t>(slots_.capacity() * sizeof(Slot)); }

 private:
  struct Slot {
    int64_t id;
    int64_t number;  // -1: the slot is free
  };

  void Resize(uint64_t capacity) {  // a power of two
    std::vector<Slot> old(capacity, {0, -1});
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.number < 0) continue;
      uint64_t at = Hash(slot.id);
      while (slots_[at & mask_].number >= 0) ++at;
      slots_[at & mask_] = slot;
    }
  }

  KeyedHash hash_;
  std::vector<Slot> slots_ = std::vector<Slot>(16, {0, -1});
  uint64_t mask_ = 15;
  int64_t size_ = 0;
};

}  // namespace twml

#endif  // TWML_CORE_ID_INDEX_H_
