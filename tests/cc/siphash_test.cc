#include "cc/core/siphash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace twml {
namespace siphash_test {

constexpr SipKey kKey = {0x0706050403020100, 0x0f0e0d0c0b0a0908};  // of the paper's appendix

TEST(SipHash, HasThePublishedValues) {
  uint8_t bytes[15];
  for (int i = 0; i < 15; ++i) bytes[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(SipHash24(kKey, bytes, 15), 0xa129ca6149be45e5u);  // the paper's example
  EXPECT_EQ(SipHash24(kKey, bytes, 0), 0x726fdb47dd0e0e31u);   // the reference implementation's
  EXPECT_EQ(SipHash24(kKey, bytes, 8), 0x93f5f5799a932462u);
  EXPECT_EQ(SipHash24(kKey, nullptr, 0), 0x726fdb47dd0e0e31u);
}

TEST(SipHash, BucketsAreRemainders) {
  for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{1} << 62, INT64_MAX}) {
    for (const uint64_t hash : {uint64_t{0}, uint64_t{7}, uint64_t{8}, UINT64_MAX}) {
      EXPECT_EQ(static_cast<uint64_t>(BucketOf(hash, n)), hash % static_cast<uint64_t>(n));
    }
  }
}

TEST(SipHash, StringsAreHashedOneByOne) {
  const std::string text = "xabcabcdefghijklmno";
  const auto* data = reinterpret_cast<const uint8_t*>(text.data());
  const Span<const uint8_t> bytes(data, static_cast<int64_t>(text.size()));
  const std::vector<int32_t> offsets = {1, 1, 4, 12, 19};
  std::vector<int64_t> out(4);
  ASSERT_TRUE(HashStrings<int32_t>(bytes, offsets, kKey, INT64_MAX, Serial, out.data()).ok());
  for (int i = 0; i < 4; ++i) {
    const uint64_t hash = SipHash24(kKey, data + offsets[i], offsets[i + 1] - offsets[i]);
    EXPECT_EQ(out[i], BucketOf(hash, INT64_MAX));
  }
}

TEST(SipHash, WrongArgumentsAreRefusedAndNothingIsWritten) {
  const std::vector<uint8_t> bytes(10);
  std::vector<int64_t> out(2, -5);
  const auto refused = [&](const std::vector<int64_t>& offsets, int64_t num_buckets) {
    return HashStrings<int64_t>(bytes, offsets, kKey, num_buckets, Serial, out.data()).message();
  };
  EXPECT_EQ(refused({0, 1, 2}, 0), "num_buckets must be at least 1, got 0");
  EXPECT_EQ(refused({}, 5), "offsets must have at least 1 element, got 0");
  EXPECT_EQ(refused({-1, 1, 2}, 5), "offsets[0] must be at least 0, got -1");
  EXPECT_EQ(refused({0, 3, 2}, 5), "offsets must be non-decreasing, got 3 and 2 at 1 and 2");
  EXPECT_EQ(refused({0, 3, 11}, 5),
            "the last offset must be at most the number of bytes, 10, got 11");
  EXPECT_EQ(out, (std::vector<int64_t>{-5, -5}));
}

}  // namespace siphash_test
}  // namespace twml
