#include "cc/core/gather_dot.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/testing.h"

namespace twml {
namespace gather_dot_test {

const std::vector<float> kTable = {1, 2, 3, 4, 5, 6};  // [3, 2]

Status Dot(const std::vector<int64_t>& positions, int64_t columns,
           const std::vector<float>& vectors, std::vector<float>* out) {
  out->assign(positions.size(), -7.0f);
  return GatherDot({kTable.data(), 3, 2},
                   {positions.data(), static_cast<int64_t>(positions.size()) / columns, columns},
                   {vectors.data(), static_cast<int64_t>(vectors.size()) / 2, 2}, Sharded(2),
                   out->data());
}

TEST(GatherDot, VectorsOfEachExample) {
  std::vector<float> out;
  ASSERT_TRUE(Dot({0, -1, 2, 1}, 2, {1, 10, -1, 0}, &out).ok());
  EXPECT_EQ(out, (std::vector<float>{21, 0, -5, -3}));
}

TEST(GatherDot, OneVectorForAllExamples) {
  std::vector<float> out;
  ASSERT_TRUE(Dot({2, 1, 0}, 1, {1, 1}, &out).ok());
  EXPECT_EQ(out, (std::vector<float>{11, 7, 3}));
}

TEST(GatherDot, TheFirstBadPositionIsNamed) {
  std::vector<float> out;
  EXPECT_EQ(Dot({0, 1, 3, -2}, 2, {1, 1}, &out).message(),
            "positions[1, 0] = 3 is out of range [-1, 3)");
  EXPECT_FALSE(Dot({0, 1, 2}, 1, {1, 1, 1, 1}, &out).ok());
}

}  // namespace gather_dot_test
}  // namespace twml
