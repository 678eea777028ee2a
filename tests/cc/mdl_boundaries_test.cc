#include "cc/core/mdl_boundaries.h"

#include <gtest/gtest.h>

#include <vector>

namespace twml {
namespace mdl_boundaries_test {

TEST(MdlCutPoints, SeparableClassesAreCutWhereTheyMeet) {
  std::vector<double> counts;
  for (int i = 0; i < 30; ++i) counts.insert(counts.end(), {i < 12 ? 5.0 : 0, i < 12 ? 0 : 5.0});
  EXPECT_EQ(MdlCutPoints(counts, 2), (std::vector<int64_t>{12}));
}

TEST(MdlCutPoints, NoiseIsNotCut) {
  std::vector<double> counts;
  for (int i = 0; i < 200; ++i) counts.insert(counts.end(), {1.0 + i % 2, 2.0 - i % 2});
  EXPECT_TRUE(MdlCutPoints(counts, 2).empty());
}

TEST(MdlCutPoints, NothingIsCutWithoutTwoClassesAndTwoValues) {
  const std::vector<double> one_class = {3, 0, 4, 0, 5, 0}, one_value = {3, 4}, nothing;
  EXPECT_TRUE(MdlCutPoints(one_class, 2).empty());
  EXPECT_TRUE(MdlCutPoints(one_value, 2).empty());
  EXPECT_TRUE(MdlCutPoints(nothing, 2).empty());
}

TEST(MdlCutPoints, ThreeAdjacentClassesAreCutTwice) {
  std::vector<double> counts;
  for (int i = 0; i < 30; ++i) {
    for (int c = 0; c < 3; ++c) counts.push_back(i / 10 == c ? 4.0 : 0.0);
  }
  EXPECT_EQ(MdlCutPoints(counts, 3), (std::vector<int64_t>{10, 20}));
}

}  // namespace mdl_boundaries_test
}  // namespace twml
