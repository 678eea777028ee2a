#include "cc/core/id_index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace twml {
namespace id_index_test {

// Inverts y = x ^ (x >> shift).
uint64_t InvertXorShift(uint64_t y, int shift) {
  uint64_t x = y;
  for (int bits = shift; bits < 64; bits += shift) x = y ^ x >> shift;
  return x;
}

// The inverse of an odd number modulo 2^64.
uint64_t Inverse(uint64_t odd) {
  uint64_t inverse = odd;
  for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

// Inverts Mix64.
int64_t InvertMix64(uint64_t hash) {
  uint64_t x = InvertXorShift(hash, 31) * Inverse(0x94d049bb133111eb);
  x = InvertXorShift(x, 27) * Inverse(0xbf58476d1ce4e5b9);
  return static_cast<int64_t>(InvertXorShift(x, 30));
}

TEST(IdIndex, IdsWithEqualUnkeyedHashesDoNotCollide) {
  constexpr int64_t kIds = 1000;
  IdIndex index;
  std::set<uint64_t> unkeyed, slots;
  for (int64_t i = 0; i < kIds; ++i) {
    const int64_t id = InvertMix64(static_cast<uint64_t>(i) << 40);
    unkeyed.insert(Mix64(static_cast<uint64_t>(id)) & 0xffff);
    slots.insert(index.Hash(id) & 0xffff);
    EXPECT_EQ(index.FindOrAdd(id), i);
  }
  EXPECT_EQ(unkeyed.size(), 1u);
  EXPECT_GT(slots.size(), 900u);  // the expected number is 992
  for (int64_t i = 0; i < kIds; ++i) {
    EXPECT_EQ(index.Find(InvertMix64(static_cast<uint64_t>(i) << 40)), i);
  }
}

}  // namespace id_index_test
}  // namespace twml
