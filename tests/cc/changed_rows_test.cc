#include "cc/core/changed_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace twml {
namespace changed_rows_test {

using Rows = std::vector<int64_t>;

// Rows that end within a word, at its end, and after it.
constexpr int64_t kSizes[] = {1, 7, 8, 9, 64, 1000};

template <class Id>
void Mark(ChangedRows* changed, const std::vector<Id>& ids) {
  changed->Mark(Span<const Id>(ids.data(), ids.size()), Serial);
}

TEST(ChangedRows, AConsumerGetsTheRowsMarkedAfterItsInterval) {
  for (const int64_t num_rows : kSizes) {
    std::mt19937 random(num_rows);
    ChangedRows changed(num_rows);
    std::vector<Rows> marked;  // of each interval
    for (int interval = 0; interval < 5; ++interval) {
      Rows ids(random() % (num_rows + 1));
      for (int64_t& id : ids) id = random() % num_rows;
      Mark(&changed, ids);
      marked.push_back(ids);
      EXPECT_EQ(changed.EndInterval(), interval + 1);
    }
    for (size_t after = 0; after <= marked.size(); ++after) {
      std::set<int64_t> expected;
      for (size_t i = after; i < marked.size(); ++i) {
        expected.insert(marked[i].begin(), marked[i].end());
      }
      EXPECT_EQ(changed.After(after), Rows(expected.begin(), expected.end()));
    }
  }
}

TEST(ChangedRows, IdsOutOfRangeAreIgnored) {
  for (const int64_t num_rows : kSizes) {
    ChangedRows changed(num_rows);
    changed.EndInterval();
    const int64_t largest = std::numeric_limits<int64_t>::max();
    Mark<int64_t>(&changed, {-1, num_rows, num_rows + 1, largest, -largest - 1});
    Mark<int32_t>(&changed,
                  {-1, static_cast<int32_t>(num_rows), std::numeric_limits<int32_t>::max(),
                   std::numeric_limits<int32_t>::min()});
    EXPECT_EQ(changed.After(1), Rows{});
    Mark<int32_t>(&changed, {static_cast<int32_t>(num_rows - 1), -5});
    EXPECT_EQ(changed.After(1), Rows{num_rows - 1});
  }
}

TEST(ChangedRows, ThreadsMarkTheSameRowsWithoutLosingOne) {
  constexpr int64_t kNumRows = 5000;
  ChangedRows changed(kNumRows);
  changed.EndInterval();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&changed, t] {
      Rows ids;
      for (int64_t id = 0; id < kNumRows; ++id) {
        if (id % 3 != t) ids.push_back(id);  // at least two threads mark each row
      }
      Mark(&changed, ids);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(changed.After(1).size(), size_t{kNumRows});
}

TEST(ChangedRows, AllRowsCountAsMarkedInTheIntervalOfMarkAll) {
  ChangedRows changed(10);
  EXPECT_TRUE(changed.AllAfter(ChangedRows::kNothing));
  const int64_t first = changed.EndInterval();
  EXPECT_FALSE(changed.AllAfter(first));
  changed.MarkAll();
  EXPECT_TRUE(changed.AllAfter(first));
  EXPECT_FALSE(changed.AllAfter(changed.EndInterval()));
}

}  // namespace changed_rows_test
}  // namespace twml
