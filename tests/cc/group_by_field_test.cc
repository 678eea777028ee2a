#include "cc/core/group_by_field.h"

#include "cc/core/field_rows.h"
#include "tests/cc/testing.h"

namespace twml {
namespace group_by_field_test {

constexpr auto kMin = std::numeric_limits<int64_t>::min();
constexpr auto kMax = std::numeric_limits<int64_t>::max();

std::vector<int64_t> Starts(const std::vector<int64_t>& num_rows, int64_t first_row = 0) {
  std::vector<int64_t> starts{first_row};
  for (const int64_t n : num_rows) starts.push_back(starts.back() + n);
  return starts;
}

// `height` random ids of each field, as a batch with a row for each id or for each `height`.
template <class Id>
Batch<Id> RandomFields(const std::vector<int64_t>& starts, int64_t height, bool pooled, int seed) {
  std::mt19937_64 random(seed);
  Batch<Id> batch;
  for (int64_t b = 0; b < height; ++b) {
    for (size_t f = 0; f + 1 < starts.size(); ++f) {
      const int64_t rows = starts[f + 1] - starts[f];
      // Small ids are frequent, and the last one occurs.
      const int64_t id =
          b % 7 == 6 ? rows - 1 : static_cast<int64_t>(random() % (random() % rows + 1));
      batch.ids.push_back(static_cast<Id>(starts[f] + id));
      if (!pooled) batch.row_splits.push_back(static_cast<int64_t>(batch.ids.size()));
    }
    if (pooled) batch.row_splits.push_back(static_cast<int64_t>(batch.ids.size()));
  }
  return batch;
}

template <class Id>
void ExpectSameAsSorted(const Csr<Id>& batch, const std::vector<int64_t>& starts, int64_t shards) {
  GroupedBatch<Id> sorted, counted;
  ASSERT_TRUE(GroupBatch<Id>(batch, starts.back(), nullptr, Sharded(1), &sorted).ok());
  const Status status = GroupByField<Id>(batch, starts, starts.back(), Sharded(shards), &counted);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(counted.num_rows, sorted.num_rows);
  EXPECT_EQ(counted.num_entries, sorted.num_entries);
  EXPECT_EQ(counted.input_dim, sorted.input_dim);
  const auto& want = std::get<Groups<Id, int32_t>>(sorted.groups);
  const auto& got = std::get<Groups<Id, int32_t>>(counted.groups);
  ASSERT_EQ(got.num_groups, want.num_groups);
  for (int64_t u = 0; u < want.num_groups; ++u) {
    ASSERT_EQ(got.ids[u], want.ids[u]);
    ASSERT_EQ(got.splits[u + 1], want.splits[u + 1]);
  }
  for (int64_t k = 0; k < batch.num_entries(); ++k) ASSERT_EQ(got.rows[k], want.rows[k]) << k;
}

TEST(FieldRows, AreThoseOfTheDefinition) {
  std::mt19937_64 random(1);
  const std::vector<int64_t> sizes = {
      2, 3, 4, 5, 65, 1 << 16, (1 << 16) + 1, int64_t{1} << 40, int64_t{1} << 61};
  FieldRows fields;
  ASSERT_TRUE(FieldRows::Make(sizes, 7, &fields).ok());
  std::vector<int64_t> ids;
  for (const int64_t edge :
       {kMin, kMin + 1, int64_t{-2}, int64_t{-1}, int64_t{0}, int64_t{1}, kMax - 1, kMax}) {
    ids.insert(ids.end(), sizes.size(), edge);
  }
  for (const int64_t offset : {-3, -2, -1, 0, 1}) {  // the last ids with a row of their own
    for (const int64_t n : sizes) ids.push_back(n + offset);
  }
  for (int b = 0; b < 500; ++b) {
    for (size_t f = 0; f < sizes.size(); ++f) {
      const auto x = static_cast<int64_t>(random() >> random() % 64);
      ids.push_back(b % 2 == 0 ? x : kMax / (sizes[f] - 1) * (sizes[f] - 1) - b);  // multiples
    }
  }
  const auto starts = Starts(sizes, 7);
  for (const int64_t shards : {1, 3}) {
    std::vector<int64_t> rows(ids.size());
    fields.Find<int64_t>(ids, Sharded(shards), rows.data());
    for (size_t k = 0; k < ids.size(); ++k) {
      const size_t f = k % sizes.size();
      ASSERT_EQ(rows[k], starts[f] + (ids[k] < 0 ? 0 : 1 + ids[k] % (sizes[f] - 1))) << ids[k];
    }
  }
  std::vector<int32_t> narrow(ids.size());
  std::vector<int64_t> rows(ids.size());
  for (size_t k = 0; k < ids.size(); ++k) narrow[k] = static_cast<int32_t>(ids[k]);
  fields.Find<int32_t>(narrow, Sharded(2), rows.data());
  for (size_t k = 0; k < ids.size(); ++k) {
    const size_t f = k % sizes.size();
    ASSERT_EQ(rows[k], starts[f] + (narrow[k] < 0 ? 0 : 1 + narrow[k] % (sizes[f] - 1)));
  }
}

TEST(FieldRows, BadSizesAreNamed) {
  FieldRows fields;
  EXPECT_EQ(FieldRows::Make(std::vector<int64_t>{}, 0, &fields).message(),
            "num_rows must have an item for each field, got none");
  EXPECT_EQ(FieldRows::Make(std::vector<int64_t>{2, 1}, 0, &fields).message(),
            "num_rows[1] must be at least 2, got 1");
  EXPECT_EQ(FieldRows::Make(std::vector<int64_t>{2}, -1, &fields).message(),
            "first_row must not be negative, got -1");
  EXPECT_EQ(FieldRows::Make(std::vector<int64_t>{5, kMax}, 0, &fields).message(),
            "the fields must have less than 2^63 rows, got more up to field 1");
}

template <class Id>
class GroupByFieldTest : public testing::Test {};
using Ids = testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(GroupByFieldTest, Ids);

TYPED_TEST(GroupByFieldTest, IsTheSortedBatch) {
  for (const int64_t first_row : {0, 11}) {
    for (const auto& num_rows :
         std::vector<std::vector<int64_t>>{{1},
                                           {64},
                                           {3, 65, 1},
                                           {2, 2, 2, 2, 511, 2, 2, 513, 5000},
                                           std::vector<int64_t>(30, 9)}) {
      const auto starts = Starts(num_rows, first_row);
      for (const int64_t height : {1, 2, 63, 64, 65, 700}) {
        for (const bool pooled : {false, true}) {
          for (const int64_t shards : {1, 3}) {
            const auto batch = RandomFields<TypeParam>(starts, height, pooled, 3);
            ExpectSameAsSorted(batch.csr(/*binary=*/true), starts, shards);
          }
        }
      }
    }
  }
}

TYPED_TEST(GroupByFieldTest, OtherBatchesAreSorted) {
  const std::vector<int64_t> starts = {0, 10, 1 << 20};  // a field that is too large to count
  ExpectSameAsSorted(RandomFields<TypeParam>(starts, 40, false, 1).csr(true), starts, 2);
  const std::vector<int64_t> small = {0, 10, 20};
  auto batch = RandomFields<TypeParam>(small, 6, false, 1);
  batch.values = RandomFloats(12);
  ExpectSameAsSorted(batch.csr(), small, 2);  // with values
  batch.row_splits = {0, 2, 3, 12};           // rows of different lengths
  ExpectSameAsSorted(batch.csr(true), small, 2);
  ExpectSameAsSorted(Batch<TypeParam>().csr(true), small, 2);  // no entries
}

TYPED_TEST(GroupByFieldTest, BadArgumentsAreNamed) {
  const std::vector<int64_t> starts = {0, 10, 20};
  auto batch = RandomFields<TypeParam>(starts, 100, false, 1);
  const auto message = [&](const std::vector<int64_t>& fields, int64_t input_dim, int64_t shards) {
    GroupedBatch<TypeParam> grouped;
    return GroupByField<TypeParam>(batch.csr(true), fields, input_dim, Sharded(shards), &grouped)
        .message();
  };
  EXPECT_EQ(message({0}, 20, 1), "field_starts must be at least two rows in [0, 20]");
  EXPECT_EQ(message({0, 10, 20}, 19, 1), "field_starts must be at least two rows in [0, 19]");
  EXPECT_EQ(message({-1, 20}, 20, 1), "field_starts must be at least two rows in [0, 20]");
  EXPECT_EQ(message({0, 10, 10}, 20, 1), "field_starts must be ascending, got 10 after 10");
  EXPECT_EQ(message({0, 1, 2, 20}, 20, 1),
            "the number of entries must be a multiple of the 3 fields, got 200");
  for (const int64_t shards : {1, 2}) {
    for (const int64_t bad : {-1, 9, 20}) {
      batch = RandomFields<TypeParam>(starts, 100, false, 1);
      batch.ids[151] = batch.ids[173] = static_cast<TypeParam>(bad);
      EXPECT_EQ(message(starts, 20, shards),
                "ids[151] = " + std::to_string(bad) + " is out of range [10, 20) of field 1");
    }
  }
}

}  // namespace group_by_field_test
}  // namespace twml
