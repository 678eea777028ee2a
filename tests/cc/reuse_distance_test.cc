#include "cc/core/reuse_distance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

namespace twml {
namespace reuse_distance_test {

int64_t SimulatedHits(const std::vector<int64_t>& ids, size_t size) {
  std::list<int64_t> cache;
  int64_t hits = 0;
  for (const int64_t id : ids) {
    const auto at = std::find(cache.begin(), cache.end(), id);
    if (at != cache.end()) {
      ++hits;
      cache.erase(at);
    } else if (size > 0 && cache.size() == size) {
      cache.pop_back();
    }
    if (size > 0) cache.push_front(id);
  }
  return hits;
}

std::vector<int64_t> SkewedIds(int64_t n, int64_t rows) {
  std::mt19937_64 random(3);
  std::vector<int64_t> ids(n);
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % (1 + random() % rows)) - 5;
  return ids;
}

TEST(ReuseDistances, HitsAreThoseOfACache) {
  const std::vector<int64_t> ids = SkewedIds(4000, 300);
  const std::vector<int64_t> sizes = {-1, 0, 1, 2, 63, 64, 65, 128, 299, 300, 5000};
  ReuseDistances distances(1000);
  distances.Add(ids);
  std::vector<int64_t> hits(sizes.size());
  distances.Hits(sizes, hits.data());
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(hits[i], SimulatedHits(ids, std::max<int64_t>(0, sizes[i]))) << sizes[i];
  }
  EXPECT_EQ(distances.level(), 0);
}

TEST(ReuseDistances, ShortDistancesAreExactBesideASample) {
  const std::vector<int64_t> ids = SkewedIds(20000, 3000);
  ReuseDistances distances(100), exact(10000);
  distances.Add(ids);
  exact.Add(ids);
  EXPECT_GT(distances.level(), 3);
  for (int64_t size = 1; size <= 100; ++size) {
    int64_t got, want;
    distances.Hits({&size, 1}, &got);
    exact.Hits({&size, 1}, &want);
    EXPECT_EQ(got, want) << size;
  }
}

TEST(LruStack, TheLowestIdsAreRemoved) {
  LruStack stack;
  stack.RemoveLowest();
  for (int64_t round = 0; round < 50; ++round) {
    for (int64_t id = 0; id < 9; ++id) {
      stack.Access(id);
      if (stack.size() > 5) stack.RemoveLowest();
    }
  }
  EXPECT_EQ(stack.size(), 5);
  EXPECT_EQ(stack.Access(8), 0);
  EXPECT_EQ(stack.Access(4), 4);
  EXPECT_EQ(stack.Access(3), LruStack::kFirst);
  stack.Keep([](int64_t id) { return id == 4 || id == 7; });
  EXPECT_EQ(stack.size(), 2);
  EXPECT_EQ(stack.Access(7), 1);
}

}  // namespace reuse_distance_test
}  // namespace twml
