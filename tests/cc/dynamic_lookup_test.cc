#include "cc/core/dynamic_lookup.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/testing.h"

namespace twml {
namespace dynamic_lookup_test {

struct State {
  explicit State(int64_t capacity, int64_t width = 0)
      : keys(capacity), last_used(capacity), counts(capacity), sketch(kSketchDepth * width) {
    int64_t size = 1;
    while (size < 2 * capacity) size *= 2;
    index.assign(size, -1);
  }
  MutableDynamicRows View() { return {keys, last_used, counts, index, sketch, header}; }

  std::vector<int64_t> keys, last_used, counts;
  std::vector<int32_t> index;
  std::vector<uint8_t> sketch;
  std::vector<int64_t> header = {0, 0, 0, 0};
};

struct Result {
  std::vector<int64_t> rows, reset;
};

Result Assign(State* state, const std::vector<int64_t>& ids, const DynamicLookupOptions& options,
              const ParallelFor& parallel_for = Serial) {
  Result result;
  result.rows.resize(ids.size());
  const Status status = AssignDynamicRows(ids, state->View(), options, parallel_for,
                                          result.rows.data(), &result.reset);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

std::vector<int64_t> Find(State* state, const std::vector<int64_t>& ids) {
  std::vector<int64_t> rows(ids.size());
  const MutableDynamicRows view = state->View();
  const ConstDynamicRows readable = {view.keys,  view.last_used, view.counts,
                                     view.index, view.sketch,    view.header};
  EXPECT_TRUE(FindDynamicRows(ids, readable, {}, Serial, rows.data()).ok());
  return rows;
}

using Rows = std::vector<int64_t>;

TEST(DynamicLookup, TheLeastRecentlyUsedRowIsGivenAway) {
  State state(3);
  EXPECT_EQ(Assign(&state, {7, -5, 7}, {}).rows, (Rows{1, 2, 1}));
  EXPECT_EQ(Assign(&state, {7}, {}).rows, (Rows{1}));
  const Result result = Assign(&state, {9}, {});
  EXPECT_EQ(result.rows, (Rows{2}));
  EXPECT_EQ(result.reset, (Rows{2}));
  EXPECT_EQ(Find(&state, {7, -5, 9}), (Rows{1, 0, 2}));
}

TEST(DynamicLookup, TheLeastOftenUsedRowIsGivenAway) {
  State state(3);
  DynamicLookupOptions options;
  options.eviction = Eviction::kLfu;
  Assign(&state, {1, 1, 2}, options);
  EXPECT_EQ(Assign(&state, {3}, options).reset, (Rows{2}));
  EXPECT_EQ(Find(&state, {1, 2, 3}), (Rows{1, 0, 2}));
}

TEST(DynamicLookup, OldRowsOnlyAreGivenAwayByAge) {
  State state(2);
  DynamicLookupOptions options;
  options.eviction = Eviction::kAge;
  options.max_age = 2;
  Assign(&state, {1}, options);
  EXPECT_EQ(Assign(&state, {2}, options).rows, (Rows{0}));
  EXPECT_EQ(Assign(&state, {2}, options).rows, (Rows{1}));
}

TEST(DynamicLookup, AnIdIsAdmittedAfterEnoughSightings) {
  State state(4, 64);
  DynamicLookupOptions options;
  options.min_count = 3;
  EXPECT_EQ(Assign(&state, {5, 5}, options).rows, (Rows{0, 0}));
  EXPECT_EQ(Assign(&state, {5}, options).rows, (Rows{1}));
}

TEST(DynamicLookup, LongRunsOfTheHashTableStayConsistent) {
  State state(200), parallel(200);
  std::mt19937_64 random(1);
  for (int batch = 0; batch < 300; ++batch) {
    std::vector<int64_t> ids(50);
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % 900);
    const Result result = Assign(&state, ids, {});
    EXPECT_EQ(Assign(&parallel, ids, {}, Sharded(3)).rows, result.rows);
    EXPECT_EQ(Find(&state, ids), result.rows);
  }
  EXPECT_EQ(state.index, parallel.index);
  EXPECT_EQ(std::count_if(state.index.begin(), state.index.end(), [](int32_t r) { return r >= 0; }),
            199);
}

TEST(DynamicLookup, ADamagedStateIsNeverReadOutOfBounds) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 50; ++trial) {
    State state(8, 16);
    for (int64_t i = 0; i < 8; ++i) {
      state.keys[i] = static_cast<int64_t>(random());
      state.last_used[i] = static_cast<int64_t>(random());
    }
    for (int32_t& row : state.index) row = static_cast<int32_t>(random() % 30) - 9;
    state.header = {static_cast<int64_t>(random() % 5), static_cast<int64_t>(random() % 8), 3, 0};
    std::vector<int64_t> ids(state.keys);
    ids.push_back(1);
    for (const int64_t row : Assign(&state, ids, {}).rows) EXPECT_TRUE(row >= 0 && row < 8);
  }
}

TEST(DynamicLookup, OtherSizesAreRefused) {
  State state(4);
  state.counts.resize(3);
  Rows rows(1), reset;
  const std::vector<int64_t> ids = {1};
  EXPECT_EQ(AssignDynamicRows(ids, state.View(), {}, Serial, rows.data(), &reset).message(),
            "counts must have 4 items, as keys, got 3");
}

// Rows are looked at a bounded number of times for each one that is given away, so that a lookup of
// a large table does not look at all of them.
TEST(DynamicLookup, TheWorkOfAFullTableDoesNotGrowWithItsSize) {
  for (const Eviction eviction : {Eviction::kLru, Eviction::kLfu, Eviction::kAge}) {
    for (const int64_t capacity : {1 << 10, 1 << 14}) {
      State state(capacity);
      int64_t work = 0, given_away = 0;
      DynamicLookupOptions options;
      options.eviction = eviction;
      options.work = &work;
      std::vector<int64_t> ids(capacity - 1);
      for (int64_t i = 0; i < capacity - 1; ++i) ids[i] = i;
      Assign(&state, ids, options);
      std::mt19937_64 random(7);
      ids.resize(100);
      while (given_away < capacity) {
        for (int64_t i = 0; i < 100; ++i) {
          ids[i] = static_cast<int64_t>(i < 20 ? random() : random() % capacity);
        }
        given_away += static_cast<int64_t>(Assign(&state, ids, options).reset.size());
      }
      EXPECT_LT(work, 100 * given_away) << capacity;  // all rows in each lookup: capacity / 20
    }
  }
}

// Another state in the same memory, as after the restoring of a checkpoint.
TEST(DynamicLookup, AStateThatWasReplacedGivesAwayItsOwnRows) {
  for (const Eviction eviction : {Eviction::kLru, Eviction::kLfu}) {
    DynamicLookupOptions options;
    options.eviction = eviction;
    State state(50), other(50);
    std::vector<int64_t> ids(49);
    const auto fill = [&](State* filled, bool backwards) {
      for (int64_t i = 0; i < 49; ++i) ids[i] = i;
      Assign(filled, ids, options);
      for (int64_t i = 0; i < 49; ++i) Assign(filled, {backwards ? 48 - i : i}, options);
    };
    fill(&state, false);
    fill(&other, true);
    Assign(&state, {100}, options);
    Assign(&other, {100}, options);
    State copy(50);
    copy = other;
    const Rows expected = Assign(&copy, {200, 201, 202}, options).reset;
    std::copy(other.keys.begin(), other.keys.end(), state.keys.begin());
    std::copy(other.last_used.begin(), other.last_used.end(), state.last_used.begin());
    std::copy(other.counts.begin(), other.counts.end(), state.counts.begin());
    std::copy(other.index.begin(), other.index.end(), state.index.begin());
    std::copy(other.header.begin(), other.header.end(), state.header.begin());
    EXPECT_EQ(Assign(&state, {200, 201, 202}, options).reset, expected);
  }
}

}  // namespace dynamic_lookup_test
}  // namespace twml
