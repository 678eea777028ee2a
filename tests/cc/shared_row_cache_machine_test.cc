// Random steps of the row cache that the threads of a scorer share, against a dictionary.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "cc/core/scorer/shared_row_cache.h"
#include "gtest/gtest.h"

namespace twml {
namespace shared_row_cache_machine_test {

using scorer::SharedRowCache;
using Rows = std::vector<SharedRowCache::Row>;

constexpr int64_t kIds = 3000, kWords = 64, kRowBytes = kWords * 8;

int64_t Steps() {
  const char* const given = std::getenv("TWML_TEST_STEPS");
  return given == nullptr ? 5'000 : std::atoll(given);
}

int64_t WordOf(int64_t id, int64_t word) { return id * 1000 + word; }

// The rows that have been given to a cache. Any number of threads may use it.
struct Dictionary {
  std::vector<std::atomic<bool>> given = std::vector<std::atomic<bool>>(kIds);
};

// What one thread does with the cache.
class Caller {
 public:
  Caller(SharedRowCache* cache, Dictionary* dictionary, uint64_t seed)
      : random_(seed), cache_(cache), dictionary_(dictionary) {}

  // Different ids, most of which are in a few sets of the cache.
  std::vector<int64_t> Ids() {
    std::vector<int64_t> ids(random_() % 17);
    const int64_t range = random_() % 2 == 0 ? 40 : kIds;
    for (int64_t& id : ids) id = static_cast<int64_t>(random_() % range);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    std::shuffle(ids.begin(), ids.end(), random_);
    return ids;
  }

  // The rows that are missing. The others must have the content that they were given.
  Rows Find(const std::vector<int64_t>& ids) {
    out_.assign(ids.size() * kWords, -1);
    Rows rows;
    for (const int64_t id : ids) rows.push_back({id, static_cast<int64_t>(rows.size())});
    cache_->Find(&rows, reinterpret_cast<char*>(out_.data()));
    std::vector<bool> missing(ids.size());
    for (const auto& row : rows) {
      wrong += row.id != ids[row.slot] || missing[row.slot];
      missing[row.slot] = true;
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!missing[i]) wrong += !dictionary_->given[ids[i]];
      for (int64_t word = 0; word < kWords; ++word) {
        wrong += out_[i * kWords + word] != (missing[i] ? -1 : WordOf(ids[i], word));
      }
    }
    return rows;
  }

  void Insert(const Rows& rows) {
    for (const auto& row : rows) {
      dictionary_->given[row.id] = true;
      for (int64_t word = 0; word < kWords; ++word) {
        out_[row.slot * kWords + word] = WordOf(row.id, word);
      }
    }
    cache_->Insert(rows, reinterpret_cast<const char*>(out_.data()));
  }

  uint64_t Random() { return random_(); }

  int64_t wrong = 0;

 private:
  std::mt19937_64 random_;
  SharedRowCache* const cache_;
  Dictionary* const dictionary_;
  std::vector<int64_t> out_;
};

// A cache of one set: of the rows that are not in use, the least recently used one leaves.
class OneSet {
 public:
  std::vector<int64_t> Find(const std::vector<int64_t>& ids) {
    ++now_;
    std::vector<int64_t> missing;
    for (const int64_t id : ids) {
      const auto at = At(id);
      at == places_.end() ? missing.push_back(id) : void(at->use = now_);
    }
    return missing;
  }

  void Insert(const std::vector<int64_t>& ids) {
    ++now_;
    for (const int64_t id : ids) {
      if (At(id) != places_.end()) continue;
      *std::min_element(places_.begin(), places_.end(),
                        [](const Place& a, const Place& b) { return a.use < b.use; }) = {id, now_};
    }
  }

 private:
  struct Place {
    int64_t id = -1, use = 0;
  };
  using Places = std::array<Place, RowCache::kWays>;

  Places::iterator At(int64_t id) {
    return std::find_if(places_.begin(), places_.end(),
                        [id](const Place& p) { return p.id == id; });
  }

  Places places_;
  int64_t now_ = 0;
};

TEST(SharedRowCacheMachine, AnyStepsOfOneSetKeepTheRowsThatAReferenceKeeps) {
  SharedRowCache cache(1, kRowBytes);
  ASSERT_EQ(cache.num_places(), RowCache::kWays);
  Dictionary dictionary;
  Caller caller(&cache, &dictionary, 1);
  OneSet reference;
  for (int64_t step = 0; step < Steps(); ++step) {
    const auto ids = caller.Ids();
    const Rows rows = caller.Find(ids);
    std::vector<int64_t> missing;
    for (const auto& row : rows) missing.push_back(row.id);
    ASSERT_EQ(missing, reference.Find(ids)) << step;
    // More than once, as several callers that have missed the same rows do.
    for (auto times = caller.Random() % 3; times > 0 && !rows.empty(); --times) {
      caller.Insert(rows);
      reference.Insert(missing);
    }
    ASSERT_EQ(caller.wrong, 0) << step;
  }
}

TEST(SharedRowCacheMachine, WhatIsInsertedIsFoundWithTheContentThatItWasGiven) {
  for (const int64_t rows : {int64_t{48}, int64_t{5} << 10}) {
    SharedRowCache cache(SharedRowCache::BytesFor(rows, kRowBytes), kRowBytes);
    Dictionary dictionary;
    Caller caller(&cache, &dictionary, static_cast<uint64_t>(rows));
    for (int64_t step = 0; step < Steps() / 2; ++step) {
      const auto ids = caller.Ids();
      const Rows missing = caller.Find(ids);
      if (caller.Random() % 4 != 0) {
        caller.Insert(missing);
        std::vector<int64_t> inserted;
        for (const auto& row : missing) inserted.push_back(row.id);
        ASSERT_TRUE(caller.Find(inserted).empty()) << step;
      }
      ASSERT_EQ(caller.wrong, 0) << step;
    }
  }
}

TEST(SharedRowCacheMachine, ThreadsFindTheContentThatAnyOfThemHasGiven) {
  for (const int64_t rows : {int64_t{16}, int64_t{5} << 10}) {
    SharedRowCache cache(SharedRowCache::BytesFor(rows, kRowBytes), kRowBytes);
    Dictionary dictionary;
    std::vector<Caller> callers;
    for (uint64_t i = 0; i < 4; ++i) callers.emplace_back(&cache, &dictionary, i);
    std::vector<std::thread> threads;
    for (Caller& caller : callers) {
      threads.emplace_back([&caller] {
        for (int64_t step = 0; step < Steps() / 8; ++step) {
          const Rows missing = caller.Find(caller.Ids());
          if (caller.Random() % 4 != 0) caller.Insert(missing);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Caller& caller : callers) EXPECT_EQ(caller.wrong, 0);
  }
}

}  // namespace shared_row_cache_machine_test
}  // namespace twml
