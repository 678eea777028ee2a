#include "cc/core/tree_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cc/testing.h"

namespace twml {
namespace tree_sums_test {

// Two trees of one split each on columns 0 and 1: the first has the values 1 and 2, the second 10
// and 20.
struct TwoTrees {
  std::vector<int32_t> features = {0, 0, 0, 1, 0, 0};
  std::vector<float> thresholds = {0.5f, 0, 0, -1.0f, 0, 0};
  std::vector<uint8_t> missing_left = {1, 1, 1, 0, 1, 1};
  std::vector<int32_t> children = {1, 2, 1, 1, 2, 2, 4, 5, 4, 4, 5, 5};
  std::vector<float> values = {0, 1, 2, 0, 10, 20};
  std::vector<int32_t> roots = {0, 3};

  Status Sums(const std::vector<float>& x, const std::vector<int64_t>& ensembles, int64_t count,
              int64_t shards, std::vector<float>* sums) const {
    const int64_t rows = static_cast<int64_t>(x.size()) / 2;
    sums->assign(rows, -1);
    const TreeNodes nodes = {features, thresholds, missing_left, children, values};
    return TreeSums({x.data(), rows, 2}, ensembles, nodes,
                    {roots.data(), count, static_cast<int64_t>(roots.size()) / count}, 1,
                    Sharded(shards), sums->data());
  }
};

TEST(TreeSums, NumbersAtTheThresholdGoLeftAndMissingOnesAsTheNodeSays) {
  const float nan = std::nanf("");
  const std::vector<float> x = {0.5f, -1.0f, 0.6f, -0.9f, nan, nan};
  for (int64_t shards : {1, 2, 3}) {
    std::vector<float> sums;
    ASSERT_TRUE(TwoTrees().Sums(x, {}, 1, shards, &sums).ok());
    EXPECT_EQ(sums, std::vector<float>({11, 22, 21}));
  }
}

TEST(TreeSums, RowsHaveTheirEnsembleOrTheMeanOfAll) {
  const std::vector<float> x = {0, -2, 0, -2};
  std::vector<float> sums;
  ASSERT_TRUE(TwoTrees().Sums(x, {1, 0}, 2, 1, &sums).ok());
  EXPECT_EQ(sums, std::vector<float>({10, 1}));
  ASSERT_TRUE(TwoTrees().Sums(x, {}, 2, 1, &sums).ok());
  EXPECT_EQ(sums, std::vector<float>({5.5f, 5.5f}));
}

TEST(TreeSums, NodesOutOfRangeAreRefused) {
  std::vector<float> sums;
  TwoTrees trees;
  trees.children[3] = 6;
  EXPECT_EQ(trees.Sums({0, 0}, {}, 1, 1, &sums).message(),
            "children[3] = 6 is out of range [0, 6)");
  trees = {};
  trees.features[2] = 2;
  EXPECT_EQ(trees.Sums({0, 0}, {}, 1, 1, &sums).message(),
            "features[2] = 2 is out of range [0, 2)");
}

TEST(TreeSums, ArraysOfAnotherNumberOfNodesAreRefused) {
  std::vector<float> sums;
  const auto refused = [&](auto change) {
    TwoTrees trees;
    change(&trees);
    return trees.Sums({0, 0}, {}, 1, 1, &sums).message();
  };
  const std::string end = " must have 6 items, 1 for each of the nodes, got 5";
  EXPECT_EQ(refused([](TwoTrees* t) { t->thresholds.pop_back(); }), "thresholds" + end);
  EXPECT_EQ(refused([](TwoTrees* t) { t->missing_left.pop_back(); }), "missing_left" + end);
  EXPECT_EQ(refused([](TwoTrees* t) { t->values.pop_back(); }), "values" + end);
  EXPECT_EQ(refused([](TwoTrees* t) { t->children.pop_back(); }),
            "children must have 12 items, 2 for each of the nodes, got 11");
}

}  // namespace tree_sums_test
}  // namespace twml
