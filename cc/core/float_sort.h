// Sorting floats by way of integers in the same order.
#ifndef TWML_CORE_FLOAT_SORT_H_
#define TWML_CORE_FLOAT_SORT_H_

#include <cstdint>
#include <cstring>
#include <vector>

namespace twml {

// Floats as integers in the same order; -0 comes before 0, and NaNs have no place.
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

// Sorts keys; other is scratch.
void RadixSort(std::vector<uint32_t>* keys, std::vector<uint32_t>* other);

}  // namespace twml

#endif  // TWML_CORE_FLOAT_SORT_H_
