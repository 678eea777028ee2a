#include "cc/core/csr.h"

#include <limits>

#include "tests/cc/testing.h"

namespace twml {
namespace csr_test {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::string SplitsError(const std::vector<int64_t>& splits, int64_t entries) {
  return CheckRowSplits(splits, entries).message();
}

TEST(CheckRowSplits, AcceptsOffsets) {
  EXPECT_EQ(SplitsError({0}, 0), "");
  EXPECT_EQ(SplitsError({0, 0, 3, 3}, 3), "");
}

TEST(CheckRowSplits, ReportsTheFirstInvalidSplit) {
  EXPECT_EQ(SplitsError({}, 0),
            "row_splits must not be empty: it has one more item than the batch has rows");
  EXPECT_EQ(SplitsError({1, 2}, 2), "row_splits[0] must be 0, got 1");
  EXPECT_EQ(SplitsError({0, 3, 2}, 2),
            "row_splits must be non-decreasing: row_splits[2] = 2 after 3");
  EXPECT_EQ(SplitsError({0, 2}, 3), "row_splits[1] must be the number of entries 3, got 2");
  EXPECT_NE(SplitsError({0, kMax, kMin}, 3), "");
  EXPECT_NE(SplitsError({0, kMax}, 3), "");
}

template <class Id>
std::string IdsError(const std::vector<Id>& ids, int64_t input_dim, int64_t shards = 1) {
  return CheckIds<Id>(ids, input_dim, Sharded(shards)).message();
}

TEST(CheckIds, AcceptsTheWholeIdSpace) {
  EXPECT_EQ(IdsError<int32_t>({}, 0), "");
  EXPECT_EQ(IdsError<int32_t>({0, 4}, 5), "");
  EXPECT_EQ(IdsError<int32_t>({0, std::numeric_limits<int32_t>::max()}, int64_t{1} << 31), "");
  EXPECT_EQ(IdsError<int32_t>({0, std::numeric_limits<int32_t>::max()}, int64_t{1} << 40), "");
  EXPECT_EQ(IdsError<int64_t>({0, kMax - 1}, kMax), "");
}

TEST(CheckIds, ReportsTheFirstInvalidIdForAnyNumberOfThreads) {
  std::vector<int64_t> ids(1000, 1);
  ids[300] = 5;
  ids[301] = -1;
  ids[900] = kMin;
  for (const int64_t shards : {1, 2, 3, 7, 100}) {
    EXPECT_EQ(IdsError(ids, 5, shards), "ids[300] = 5 is out of range [0, 5)");
  }
  EXPECT_EQ(IdsError<int32_t>({0, -7}, int64_t{1} << 40),
            "ids[1] = -7 is out of range [0, 1099511627776)");
  EXPECT_EQ(IdsError<int64_t>({0}, 0), "ids[0] = 0 is out of range [0, 0)");
  EXPECT_EQ(IdsError<int64_t>({0}, kMin), "ids[0] = 0 is out of range [0, -9223372036854775808)");
}

TEST(CheckCsr, RequiresOneValueForEachId) {
  auto batch = RandomBatch<int64_t>({2, 1}, 4);
  EXPECT_TRUE(CheckCsr(batch.csr(), 4, Serial).ok());
  EXPECT_TRUE(CheckCsr(batch.csr(true), 4, Serial).ok());
  batch.values.pop_back();
  EXPECT_EQ(CheckCsr(batch.csr(), 4, Serial).message(),
            "values must have 3 items, one for each id, got 2");
  Csr<int64_t> binary = batch.csr();
  binary.binary = true;
  EXPECT_EQ(CheckCsr(binary, 4, Serial).message(),
            "values must have 0 items for a binary batch, got 2");
}

TEST(RowSplitsFromIndices, CountsEmptyRowsEverywhere) {
  const std::vector<int64_t> rows = {1, 1, 4, 5, 5, 5};
  for (const int64_t shards : {1, 2, 3, 6}) {
    std::vector<int64_t> splits(9, -1);
    ASSERT_TRUE(RowSplitsFromIndices(rows, 8, Sharded(shards), splits.data()).ok());
    EXPECT_EQ(splits, (std::vector<int64_t>{0, 0, 2, 2, 2, 3, 6, 6, 6}));
  }
  std::vector<int64_t> splits(3, -1);
  ASSERT_TRUE(RowSplitsFromIndices({}, 2, Serial, splits.data()).ok());
  EXPECT_EQ(splits, (std::vector<int64_t>{0, 0, 0}));
}

TEST(RowSplitsFromIndices, RejectsRowsOutOfOrder) {
  std::vector<int64_t> splits(9);
  const std::vector<int64_t> decreasing = {0, 3, 2, 1};
  for (const int64_t shards : {1, 2, 4}) {
    EXPECT_EQ(RowSplitsFromIndices(decreasing, 4, Sharded(shards), splits.data()).message(),
              "row_indices must be in row-major order: row_indices[2] = 2 after 3");
  }
  EXPECT_EQ(RowSplitsFromIndices(decreasing, 3, Serial, splits.data()).message(),
            "row_indices[1] = 3 is out of range [0, 3)");
  EXPECT_FALSE(RowSplitsFromIndices({}, -1, Serial, splits.data()).ok());
}

// Rows out of order make several threads write the same splits, which the thread sanitizer must not
// report as a race.
TEST(RowSplitsFromIndices, ReportsTheFirstInvalidRowForAnyNumberOfThreads) {
  std::mt19937_64 random(5);
  constexpr int64_t kEntries = 40, kNumRows = 12;
  for (int round = 0; round < 60; ++round) {
    std::vector<int64_t> rows(kEntries), splits(kNumRows + 1);
    for (int64_t& row : rows) row = static_cast<int64_t>(random() % kNumRows);
    if (round % 3 != 0) std::sort(rows.begin() + round % 20, rows.end());
    if (round % 5 == 0) rows[random() % kEntries] = kNumRows;
    const std::string want = RowSplitsFromIndices(rows, kNumRows, Serial, splits.data()).message();
    for (const int64_t shards : {2, 3, 8, 40}) {
      EXPECT_EQ(RowSplitsFromIndices(rows, kNumRows, Sharded(shards), splits.data()).message(),
                want);
    }
  }
}

TEST(RowSplitsFromIndices, RejectsRowsOutOfRange) {
  std::vector<int64_t> splits(9);
  for (const int64_t bad : {int64_t{-1}, int64_t{4}, INT64_MIN, INT64_MAX}) {
    for (const size_t at : {0, 1, 5}) {
      std::vector<int64_t> rows = {0, 1, 1, 2, 3, 3};
      rows[at] = bad;
      for (const int64_t shards : {1, 2, 6}) {
        EXPECT_EQ(RowSplitsFromIndices(rows, 4, Sharded(shards), splits.data()).message(),
                  "row_indices[" + std::to_string(at) + "] = " + std::to_string(bad) +
                      " is out of range [0, 4)");
      }
    }
  }
}

TEST(CsrFromIndices, SeparatesRowsAndIds) {
  const std::vector<int64_t> indices = {1, 7, 1, -3, 4, 1L << 40};
  for (const int64_t shards : {1, 2, 3}) {
    std::vector<int64_t> splits(6, -1), ids(3);
    ASSERT_TRUE(CsrFromIndices(indices, 5, Sharded(shards), ids.data(), splits.data()).ok());
    EXPECT_EQ(splits, (std::vector<int64_t>{0, 0, 2, 2, 2, 3}));
    EXPECT_EQ(ids, (std::vector<int64_t>{7, -3, 1L << 40}));
    EXPECT_EQ(CsrFromIndices(indices, 4, Sharded(shards), ids.data(), splits.data()).message(),
              "indices[2, 0] = 4 is out of range [0, 4)");
    const std::vector<int64_t> decreasing = {2, 0, 1, 0, 0, 0};
    EXPECT_EQ(CsrFromIndices(decreasing, 3, Sharded(shards), ids.data(), splits.data()).message(),
              "indices must be in row-major order: indices[1, 0] = 1 after 2");
  }
}

}  // namespace csr_test
}  // namespace twml
