#include "cc/core/row_cache.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "cc/core/hash.h"
#include "gtest/gtest.h"

namespace twml {
namespace row_cache_test {

// One lookup of different ids. Returns how many were in the cache.
int64_t Lookup(RowCache* cache, const std::vector<int64_t>& ids,
               std::vector<RowCache::Placed>* placed, bool counts = true) {
  std::vector<int64_t> places(ids.size()), missing;
  cache->Begin(counts);
  cache->Find(Span<const int64_t>(ids), Serial, places.data());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (places[i] == RowCache::kNoRow) missing.push_back(ids[i]);
  }
  EXPECT_TRUE(cache->Place(missing, placed).ok());
  return static_cast<int64_t>(ids.size() - missing.size());
}

TEST(RowCache, ARowThatIsNotPinnedLeavesWhereTheSetIsFull) {
  RowCache cache(RowCache::kWays, RowPolicy::kLru);  // one set
  std::vector<RowCache::Placed> placed;
  std::vector<int64_t> first(RowCache::kWays);
  for (int64_t i = 0; i < RowCache::kWays; ++i) first[i] = 100 + i;
  EXPECT_EQ(Lookup(&cache, first, &placed), 0);
  std::vector<int64_t> rest(first.begin() + 1, first.end());
  EXPECT_EQ(Lookup(&cache, rest, &placed), RowCache::kWays - 1);
  EXPECT_EQ(Lookup(&cache, {7}, &placed), 0);
  ASSERT_EQ(placed.size(), 1u);
  EXPECT_EQ(placed[0].old_id, 100);  // the least recently used one
  EXPECT_EQ(cache.Peek(100), RowCache::kNoRow);
  EXPECT_EQ(cache.Peek(7), placed[0].place);
}

TEST(RowCache, LfuKeepsTheRowsThatWereUsedInMoreLookups) {
  RowCache cache(RowCache::kWays, RowPolicy::kLfu);
  std::vector<RowCache::Placed> placed;
  std::vector<int64_t> often, once = {50};
  for (int64_t i = 1; i < RowCache::kWays; ++i) often.push_back(i);
  for (int i = 0; i < 3; ++i) Lookup(&cache, often, &placed);
  Lookup(&cache, once, &placed);  // used last, but only once
  Lookup(&cache, {60}, &placed);
  ASSERT_EQ(placed.size(), 1u);
  EXPECT_EQ(placed[0].old_id, 50);
}

TEST(RowCache, LfuDoesNotCountUpdates) {
  RowCache cache(RowCache::kWays, RowPolicy::kLfu);
  std::vector<RowCache::Placed> placed;
  std::vector<int64_t> twice;
  for (int64_t i = 1; i < RowCache::kWays; ++i) twice.push_back(i);
  Lookup(&cache, {50}, &placed);
  for (int i = 0; i < 2; ++i) Lookup(&cache, twice, &placed);
  for (int i = 0; i < 5; ++i) Lookup(&cache, {50}, &placed, /*counts=*/false);
  Lookup(&cache, {60}, &placed);
  ASSERT_EQ(placed.size(), 1u);
  EXPECT_EQ(placed[0].old_id, 50);
}

TEST(RowCache, EveryNumberOfPinnedRowsUpToTheSizeFits) {
  for (const int64_t size : {16, 32, 160, 1600}) {
    RowCache cache(size, RowPolicy::kLru);
    std::vector<RowCache::Placed> placed;
    std::mt19937_64 random(size);
    for (int lookup = 0; lookup < 20; ++lookup) {
      std::set<int64_t> ids;
      while (static_cast<int64_t>(ids.size()) < size) ids.insert(random() % (3 * size));
      Lookup(&cache, {ids.begin(), ids.end()}, &placed);
      std::set<int64_t> places;
      for (const int64_t id : ids) places.insert(cache.Peek(id));
      EXPECT_EQ(static_cast<int64_t>(places.size()), size);
      EXPECT_EQ(*places.begin(), 0);
      EXPECT_EQ(*places.rbegin(), size - 1);
    }
  }
}

// Ids that are neighbors under a hash that anyone can compute. If they were neighbors here, a
// lookup would pass all full sets.
TEST(RowCache, ChosenIdsAreSpreadOverTheSets) {
  constexpr int64_t kSets = 1024;
  RowCache cache(kSets * RowCache::kWays, RowPolicy::kLru);
  std::vector<int64_t> ids;
  for (int64_t id = 0; static_cast<int64_t>(ids.size()) < kSets; ++id) {
    if (Mix64(static_cast<uint64_t>(id)) < ~uint64_t{0} / 64) ids.push_back(id);
  }
  std::vector<RowCache::Placed> placed;
  Lookup(&cache, ids, &placed);
  std::set<int64_t> sets;
  for (const RowCache::Placed& each : placed) sets.insert(each.place / RowCache::kWays);
  EXPECT_GT(static_cast<int64_t>(sets.size()), kSets / 3);  // neighbors would fill 64
}

TEST(RowCache, TooManyDistinctIdsAreAnErrorThatNamesTheSize) {
  RowCache cache(16, RowPolicy::kLru);
  std::vector<RowCache::Placed> placed;
  std::vector<int64_t> ids(17);
  for (int64_t i = 0; i < 17; ++i) ids[i] = i;
  cache.Begin(/*counts=*/true);
  const Status status = cache.Place(ids, &placed);
  EXPECT_EQ(status.message(),
            "the 17 distinct ids of one lookup must fit into the cache: expected cache_rows of at "
            "least 17, got 16");
  EXPECT_EQ(cache.Peek(3), RowCache::kNoRow);
}

TEST(RowCache, WhatIsUndoneIsAsBefore) {
  for (const RowPolicy policy : {RowPolicy::kLru, RowPolicy::kLfu}) {
    RowCache cache(64, policy);
    std::vector<RowCache::Placed> placed;
    std::mt19937_64 random(5);
    std::vector<int64_t> ids;
    for (int lookup = 0; lookup < 50; ++lookup) {
      std::set<int64_t> wanted;
      while (wanted.size() < 50) wanted.insert(random() % 200);
      ids.assign(wanted.begin(), wanted.end());
      Lookup(&cache, ids, &placed);
    }
    std::vector<int64_t> before;
    for (int64_t place = 0; place < 64; ++place) before.push_back(cache.id_at(place));
    std::vector<int64_t> others;
    for (int64_t i = 0; i < 60; ++i) others.push_back(1000 + i);
    Lookup(&cache, others, &placed);
    for (size_t i = placed.size(); i-- > 0;) cache.Undo(placed[i], /*restore=*/true);
    for (int64_t place = 0; place < 64; ++place) {
      EXPECT_EQ(cache.id_at(place), before[place]);
      if (before[place] >= 0) {
        EXPECT_EQ(cache.Peek(before[place]), place);
      }
    }
    for (const int64_t id : others) EXPECT_EQ(cache.Peek(id), RowCache::kNoRow);
  }
}

TEST(RowCache, AsLongAsNoSetOverflowsTheSetsAreLeastRecentlyUsedLists) {
  // A lookup has few ids, so sets are never full of pinned rows. The sets of the cache are known
  // from the places of the ids.
  RowCache cache(160, RowPolicy::kLru);
  std::map<int64_t, int64_t> set_of;                       // of each id, once it has been seen
  std::map<int64_t, std::map<int64_t, int64_t>> last_use;  // set -> id -> lookup
  std::vector<RowCache::Placed> placed;
  std::mt19937_64 random(9);
  for (int64_t lookup = 0; lookup < 3000; ++lookup) {
    std::set<int64_t> ids;
    while (ids.size() < 4) ids.insert(static_cast<int64_t>(random() % 400));
    for (const int64_t id : ids) {
      if (cache.Peek(id) != RowCache::kNoRow) last_use[set_of[id]][id] = lookup;
    }
    Lookup(&cache, {ids.begin(), ids.end()}, &placed);
    for (const auto& each : placed) {
      const int64_t set = each.place / RowCache::kWays;
      const auto known = set_of.emplace(each.id, set);
      EXPECT_EQ(known.first->second, set);
      auto& uses = last_use[set];
      if (static_cast<int64_t>(uses.size()) == RowCache::kWays) {
        const auto oldest =
            std::min_element(uses.begin(), uses.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
        EXPECT_EQ(uses[each.old_id], oldest->second);
        uses.erase(each.old_id);
      } else {
        EXPECT_EQ(each.old_id, RowCache::kNoRow);
      }
      uses[each.id] = lookup;
    }
  }
}

}  // namespace row_cache_test
}  // namespace twml
