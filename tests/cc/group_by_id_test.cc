#include "cc/core/group_by_id.h"

#include <tuple>

#include "tests/cc/testing.h"

namespace twml {
namespace group_by_id_test {

// One line per entry, in the order of the groups: id, row, value.
using Line = std::tuple<int64_t, int64_t, float>;

template <class Id, class Row>
std::vector<Line> Lines(const Groups<Id, Row>& groups, bool weighted) {
  std::vector<Line> lines;
  for (int64_t u = 0; u < groups.num_groups; ++u) {
    EXPECT_LT(groups.splits[u], groups.splits[u + 1]) << "an empty group";
    EXPECT_TRUE(u == 0 || groups.ids[u - 1] < groups.ids[u]);
    for (int64_t k = groups.splits[u]; k < groups.splits[u + 1]; ++k) {
      lines.emplace_back(groups.ids[u], groups.rows[k], weighted ? groups.values[k] : 1.0f);
    }
  }
  return lines;
}

template <class Id>
std::vector<Line> Expected(const Batch<Id>& batch, bool weighted, bool by_rows) {
  std::vector<Line> lines;
  int64_t row = 0;
  for (size_t k = 0; k < batch.ids.size(); ++k) {
    while (static_cast<int64_t>(k) >= batch.row_splits[row + 1]) ++row;
    lines.emplace_back(batch.ids[k], by_rows ? row : k, weighted ? batch.values[k] : 1.0f);
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return std::get<0>(a) < std::get<0>(b); });
  return lines;
}

template <class Id, class Row>
void ExpectGrouped(const Batch<Id>& batch, int64_t input_dim, int64_t shards) {
  for (const bool weighted : {false, true}) {
    for (const bool by_rows : {false, true}) {
      const auto groups = GroupById<Id, Row>(
          batch.ids, weighted ? Span<const float>(batch.values) : Span<const float>(),
          by_rows ? Span<const int64_t>(batch.row_splits) : Span<const int64_t>(), input_dim,
          Sharded(shards));
      EXPECT_EQ(Lines(groups, weighted), Expected(batch, weighted, by_rows))
          << "input_dim " << input_dim << " shards " << shards;
    }
  }
}

TEST(GroupById, ThereAreNoGroupsWithoutEntries) {
  for (const int64_t shards : {1, 3}) {
    const auto batch = RandomBatch<int64_t>({}, 5, 1),
               empty_rows = RandomBatch<int64_t>({0, 0}, 5, 1);
    ExpectGrouped<int64_t, int32_t>(batch, 5, shards);
    ExpectGrouped<int64_t, int64_t>(empty_rows, 5, shards);
  }
}

TEST(GroupById, IsAStableSortForEverySizeOfTheIdSpace) {
  for (const int bits : {0, 1, 10, 11, 12, 22, 23, 31, 32, 33, 44, 62}) {
    const int64_t input_dim = int64_t{1} << bits;
    auto batch = RandomBatch<int64_t>({0, 3, 0, 0, 90, 1, 40, 0}, input_dim, bits);
    batch.ids.front() = batch.ids.back() = input_dim - 1;
    batch.ids[5] = 0;
    for (const int64_t shards : {1, 3}) {
      ExpectGrouped<int64_t, int32_t>(batch, input_dim, shards);
      ExpectGrouped<int64_t, int64_t>(batch, input_dim, shards);
    }
    if (bits <= 31) {
      Batch<int32_t> narrow{{batch.ids.begin(), batch.ids.end()}, batch.values, batch.row_splits};
      ExpectGrouped<int32_t, int32_t>(narrow, input_dim, 2);
    }
  }
}

TEST(GroupById, IsTheSameForAnyNumberOfThreadsAndChunks) {
  // Several chunks, with rows that span them and empty rows at their borders.
  std::vector<int64_t> lengths = {0, 0, 40'000, 0, 1};
  for (int i = 0; i < 3000; ++i) lengths.push_back(i % 13);
  lengths.push_back(0);
  const auto batch = RandomBatch<int64_t>(lengths, 70'000);
  for (const int64_t shards : {1, 2, 5}) ExpectGrouped<int64_t, int32_t>(batch, 70'000, shards);
}

TEST(GroupById, GroupsABatchOfOneRepeatedId) {
  auto batch = RandomBatch<int64_t>({20'000, 20'000}, 1);
  ExpectGrouped<int64_t, int32_t>(batch, 1, 2);
  std::fill(batch.ids.begin(), batch.ids.end(), 999);
  ExpectGrouped<int64_t, int32_t>(batch, 1000, 2);
}

TEST(GroupById, GroupsASingleEntry) {
  ExpectGrouped<int64_t, int32_t>(RandomBatch<int64_t>({0, 1, 0}, 9), 9, 4);
}

template <class Id>
std::vector<Line> Lines(const GroupedBatch<Id>& grouped, bool weighted) {
  return std::visit([&](const auto& groups) { return Lines(groups, weighted); }, grouped.groups);
}

TEST(GroupBatch, IsTheSameFromGroupedIds) {
  for (const auto& lengths : std::vector<std::vector<int64_t>>{
           {}, {0, 0}, {1}, {0, 3, 0, 0, 90, 1, 40, 0}, {70000, 0, 5}}) {
    const auto batch = RandomBatch<int64_t>(lengths, 50);
    for (const int64_t shards : {1, 3}) {
      GroupedBatch<int64_t> ids, got;
      ASSERT_TRUE(GroupIds<int64_t>(batch.ids, 50, Sharded(shards), &ids).ok());
      for (const bool weighted : {false, true}) {
        const auto csr = batch.csr(!weighted);
        ASSERT_TRUE(GroupBatch(csr, 60, &ids, Sharded(shards), &got).ok());
        EXPECT_EQ(Lines(got, weighted), Expected(batch, weighted, true));
        EXPECT_EQ(got.num_rows, batch.num_rows());
        EXPECT_EQ(got.num_entries, csr.num_entries());
        EXPECT_EQ(got.input_dim, 60);
      }
    }
  }
}

TEST(GroupBatch, GroupsOfOtherIdsAreRefused) {
  const auto batch = RandomBatch<int64_t>({3, 1}, 50);
  GroupedBatch<int64_t> fewer, wider, of_batch, got;
  ASSERT_TRUE(GroupIds<int64_t>({batch.ids.data(), 3}, 50, Serial, &fewer).ok());
  ASSERT_TRUE(GroupIds<int64_t>(batch.ids, 50, Serial, &wider).ok());
  ASSERT_TRUE(GroupBatch<int64_t>(batch.csr(), 50, nullptr, Serial, &of_batch).ok());
  EXPECT_EQ(GroupBatch(batch.csr(), 50, &fewer, Serial, &got).message(),
            "groups must be made of the 4 ids, got 3 entries of 3 rows");
  EXPECT_EQ(GroupBatch(batch.csr(), 50, &of_batch, Serial, &got).message(),
            "groups must be made of the 4 ids, got 4 entries of 2 rows");
  const Status narrow = GroupBatch(batch.csr(), 1, &wider, Serial, &got);
  EXPECT_NE(narrow.message().find("is out of range [0, 1)"), std::string::npos);
}

TEST(GroupCodedBatch, RefusesWhatIsNoGrouping) {
  const auto refused = [](std::vector<int64_t> ids, std::vector<uint32_t> codes, int64_t dim = 9,
                          std::vector<int64_t> row_splits = {0, 1, 3},
                          std::vector<float> values = {1, 2, 3}) {
    GroupedBatch<int64_t> grouped;
    const Csr<int64_t> batch{ids, values, row_splits, false};
    return GroupCodedBatch(batch, Span<const uint32_t>(codes), dim, Serial, &grouped).message();
  };
  EXPECT_EQ(refused({2, 5}, {0, 1, 0}), "");
  EXPECT_EQ(refused({2, 5}, {0, 2, 1}), "codes must be in [0, 2), got 2");
  EXPECT_EQ(refused({2, 5}, {0, 0, 0}), "ids[1] = 5 has no entry");
  EXPECT_EQ(refused({5, 5}, {0, 1, 0}),
            "distinct ids must increase, but ids[0] = 5 is followed by 5");
  EXPECT_EQ(refused({2, 9}, {0, 1, 0}), "ids[1] = 9 is out of range [0, 9)");
  EXPECT_EQ(refused({2, 5}, {0, 1, 0}, 9, {0, 1, 3}, {1}), "values must have 3 items, got 1");
  EXPECT_NE(refused({2, 5}, {0, 1, 0}, 9, {0, 2}), "");
}

}  // namespace group_by_id_test
}  // namespace twml
