#include "cc/core/int8_rows.h"

#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/testing.h"

namespace twml {
namespace int8_rows_test {

struct Encoded {
  std::vector<int8_t> codes;
  std::vector<float> scales, decoded;
};

Encoded Encode(const std::vector<float>& rows, int64_t dim, const uint64_t* seed = nullptr,
               int64_t threads = 1) {
  const int64_t n = dim == 0 ? 0 : static_cast<int64_t>(rows.size()) / dim;
  Encoded found;
  found.codes.resize(rows.size());
  found.scales.resize(n);
  found.decoded.resize(rows.size());
  RowsToInt8({rows.data(), n, dim}, seed, Sharded(threads), found.codes.data(),
             found.scales.data());
  RowsFromInt8({found.codes.data(), n, dim}, found.scales.data(), Sharded(threads),
               found.decoded.data());
  return found;
}

TEST(RowsToInt8, ItemsDifferByHalfTheScaleAndDecodedRowsAreExact) {
  for (const int64_t dim : {1, 3, 16, 65}) {
    std::vector<float> rows = RandomFloats(20 * dim);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] *= std::ldexp(1.0f, static_cast<int>(i) % 90);
    const Encoded found = Encode(rows, dim);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double error = std::abs(static_cast<double>(rows[i]) - found.decoded[i]);
      EXPECT_LE(error, 0.50001 * found.scales[i / dim]) << i;
    }
    const Encoded again = Encode(found.decoded, dim);
    EXPECT_EQ(again.decoded, found.decoded);
    EXPECT_EQ(again.scales, found.scales);
  }
}

TEST(RowsToInt8, TheThreadsDoNotMatter) {
  const std::vector<float> rows = RandomFloats(30 * 17);
  const uint64_t seed = 5, other = 6;
  for (const uint64_t* each : {static_cast<const uint64_t*>(nullptr), &seed}) {
    const Encoded one = Encode(rows, 17, each), many = Encode(rows, 17, each, 7);
    EXPECT_EQ(one.codes, many.codes);
    EXPECT_EQ(one.scales, many.scales);
  }
  EXPECT_NE(Encode(rows, 17, &seed).codes, Encode(rows, 17, &other).codes);
}

TEST(RowsToInt8, RoundingAtRandomIsRightOnAverage) {
  const std::vector<float> rows = {127, 0.3f, -0.3f, 0, 126.9f, -127};
  std::vector<double> sums(rows.size(), 0);
  constexpr int kTimes = 4000;
  for (uint64_t seed = 0; seed < kTimes; ++seed) {
    const Encoded found = Encode(rows, static_cast<int64_t>(rows.size()), &seed);
    for (size_t i = 0; i < rows.size(); ++i) sums[i] += found.decoded[i];
  }
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(sums[i] / kTimes, rows[i], 0.03) << i;
  EXPECT_EQ(sums[3], 0);
}

TEST(RowsToInt8, NumbersThatAreNotFiniteAreNotLost) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::nanf("");
  const uint64_t seed = 1;
  for (const uint64_t* each : {static_cast<const uint64_t*>(nullptr), &seed}) {
    const Encoded found = Encode({kInf, 1, -kInf, kNan, kInf, 2}, 3, each);
    EXPECT_EQ(found.decoded[0], kInf);
    EXPECT_TRUE(std::isnan(found.decoded[1]));
    EXPECT_EQ(found.decoded[2], -kInf);
    for (int i = 3; i < 6; ++i) EXPECT_TRUE(std::isnan(found.decoded[i]));
  }
}

TEST(RowsToInt8, TheLimitsOfFloats) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const Encoded found = Encode({kMax, -kMax, 0, 0, 1e-40f, -1e-38f, 0x1p-100f, 0}, 2);
  EXPECT_NEAR(found.decoded[0] / kMax, 1, 1e-4);
  EXPECT_EQ(found.decoded[1], -found.decoded[0]);
  for (int i = 2; i < 6; ++i) EXPECT_EQ(found.decoded[i], 0);
  EXPECT_NEAR(found.decoded[6] / 0x1p-100f, 1, 1e-4);
  EXPECT_TRUE(Encode({}, 0).codes.empty());
}

}  // namespace int8_rows_test
}  // namespace twml
