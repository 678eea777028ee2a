#include "cc/core/hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace twml {
namespace hash_test {

TEST(Hash, MixMatchesSplitMix64) {
  EXPECT_EQ(Mix64(0), 0u);
  // The first output of SplitMix64 seeded with 0.
  EXPECT_EQ(Mix64(0x9e3779b97f4a7c15), 0xe220a8397b1dcdaf);
}

TEST(Hash, ReducedIdsFitTheirBits) {
  for (const int bits : {1, 2, 31, 32, 33, 61, 62}) {
    EXPECT_EQ(ReduceToBits(UINT64_MAX, bits), (int64_t{1} << bits) - 1);
    EXPECT_EQ(ReduceToBits(0, bits), 0);
  }
}

TEST(Hash, BitsOutOfRangeAreRejected) {
  const std::vector<int64_t> ids = {1, 2};
  std::vector<int64_t> out(2, -5);
  for (const int64_t bits : {int64_t{-1}, int64_t{0}, int64_t{63}, int64_t{1} << 40}) {
    EXPECT_FALSE(HashIds<int64_t>(ids, bits, 0, Serial, out.data()).ok());
  }
  EXPECT_EQ(out, (std::vector<int64_t>{-5, -5}));
}

TEST(Hash, AnyIdsAreHashed) {
  const std::vector<int64_t> ids = {INT64_MIN, -1, 0, 1, INT64_MAX};
  std::vector<int64_t> out(ids.size());
  ASSERT_TRUE(HashIds<int64_t>(ids, 62, INT64_MIN, Serial, out.data()).ok());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_GE(out[i], 0);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(out[i], out[j]);
  }
}

}  // namespace hash_test
}  // namespace twml
