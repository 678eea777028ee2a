// Radix sort of floats, which are mapped to integers of the same order.
#ifndef TWML_CORE_FLOAT_SORT_H_
#define TWML_CORE_FLOAT_SORT_H_

#include <cstdint>
#include <cstring>
#include <vector>

namespace twml {

// Maps a float to an integer such that the order is kept. -0 sorts before 0. NaNs are not allowed.
inline uint32_t ToSortKey(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

inline float FromSortKey(uint32_t key) {
  const uint32_t bits = key ^ (key >> 31 ? 0x80000000u : 0xffffffffu);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Sorts the keys. `scratch` is working memory.
void RadixSort(std::vector<uint32_t>* keys, std::vector<uint32_t>* scratch);

}  // namespace twml

#endif  // TWML_CORE_FLOAT_SORT_H_
