#include "cc/core/find_keys.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/testing.h"

namespace twml {
namespace find_keys_test {

std::vector<int64_t> Find(const std::vector<int64_t>& known, const std::vector<int64_t>& keys) {
  std::vector<int64_t> positions(keys.size(), -7);
  FindKeys({known.data(), static_cast<int64_t>(known.size())},
           {keys.data(), static_cast<int64_t>(keys.size())}, Sharded(3), positions.data());
  return positions;
}

TEST(FindKeys, NoKeysAreKnown) {
  EXPECT_EQ(Find({}, {0, INT64_MIN}), (std::vector<int64_t>{-1, -1}));
}

TEST(FindKeys, ExtremeKeys) {
  EXPECT_EQ(Find({INT64_MIN, -1, INT64_MAX}, {INT64_MAX, -1, INT64_MIN, 0, INT64_MAX - 1}),
            (std::vector<int64_t>{2, 1, 0, -1, -1}));
  EXPECT_EQ(Find({INT64_MAX}, {INT64_MAX, INT64_MIN}), (std::vector<int64_t>{0, -1}));
}

TEST(FindKeys, EqualsTheStandardLibraryForSkewedKeys) {
  std::mt19937_64 random(1);
  std::vector<int64_t> known;
  for (int i = 0; i < 5000; ++i) known.push_back(static_cast<int64_t>(random() >> (1 + i % 60)));
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  std::vector<int64_t> keys;
  for (const int64_t key : known) {
    for (const int64_t k : {key - 1, key, key + 1}) keys.push_back(k);
  }
  const std::vector<int64_t> positions = Find(known, keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto at = std::lower_bound(known.begin(), known.end(), keys[i]);
    const bool there = at != known.end() && *at == keys[i];
    EXPECT_EQ(positions[i], there ? at - known.begin() : -1) << keys[i];
  }
}

}  // namespace find_keys_test
}  // namespace twml
