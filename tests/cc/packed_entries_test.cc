#include "cc/core/packed_entries.h"

#include "tests/cc/testing.h"

namespace twml {
namespace packed_entries_test {

using Bytes = std::vector<uint8_t>;

template <class Id>
std::vector<Bytes> Pack(const Batch<Id>& batch, int64_t dim, int64_t parts, bool binary = false,
                        bool deduplicate = true, int64_t shards = 1) {
  std::vector<Bytes> messages(parts);
  const auto allocate = [&](int64_t p, int64_t bytes) {
    messages[p].resize(bytes);
    return messages[p].data();
  };
  const Status status =
      PackEntries(batch.csr(binary), dim, parts, deduplicate, Sharded(shards), allocate);
  EXPECT_TRUE(status.ok()) << status.message();
  return messages;
}

template <class Id>
Status Unpack(const Bytes& message, Batch<Id>* out) {
  return UnpackEntries<Id>(message, [&](int64_t entries, int64_t rows, bool binary) {
    out->ids.assign(entries + 1, -1);  // never null
    out->values.assign(binary ? 0 : entries, -1);
    out->row_splits.assign(rows + 1, -1);
    return UnpackedEntries<Id>{out->ids.data(), out->values.data(), out->row_splits.data()};
  });
}

template <class Id>
Batch<Id> PartOf(const Batch<Id>& batch, int64_t p, int64_t parts) {
  Batch<Id> part;
  for (int64_t b = 0; b < batch.num_rows(); ++b) {
    for (int64_t k = batch.row_splits[b]; k < batch.row_splits[b + 1]; ++k) {
      if (batch.ids[k] % parts != p) continue;
      part.ids.push_back(batch.ids[k] / parts);
      part.values.push_back(batch.values[k]);
    }
    part.row_splits.push_back(static_cast<int64_t>(part.ids.size()));
  }
  return part;
}

template <class Id>
void ExpectRoundTrip(const std::vector<int64_t>& lengths, int64_t ids, int64_t dim) {
  const auto batch = RandomBatch<Id>(lengths, ids);
  for (const int64_t parts : {1, 2, 3, 4, 7}) {
    for (const bool binary : {false, true}) {
      for (const bool deduplicate : {false, true}) {
        const auto messages = Pack(batch, dim, parts, binary, deduplicate);
        EXPECT_EQ(messages, Pack(batch, dim, parts, binary, deduplicate, 3));
        for (int64_t p = 0; p < parts; ++p) {
          const auto want = PartOf(batch, p, parts);
          Batch<Id> got;
          const Status status = Unpack(messages[p], &got);
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_EQ(got.ids.back(), -1);
          got.ids.pop_back();
          EXPECT_EQ(got.ids, want.ids);
          EXPECT_EQ(got.values, binary ? std::vector<float>() : want.values);
          EXPECT_EQ(got.row_splits, want.row_splits);
        }
      }
    }
  }
}

TEST(PackEntries, RoundTrip) {
  for (const int64_t dim : {1, 2, 3, 255, 256, 257}) {
    for (const auto& lengths : std::vector<std::vector<int64_t>>{
             {}, {0}, {1}, {0, 0}, {63, 64, 65, 0, 128}, {1, 0, 2000}}) {
      ExpectRoundTrip<int32_t>(lengths, dim, dim);
      ExpectRoundTrip<int64_t>(lengths, dim, dim);
    }
  }
  ExpectRoundTrip<int32_t>({5, 300}, 7, std::numeric_limits<int32_t>::max());
  ExpectRoundTrip<int64_t>({5, 300}, std::numeric_limits<int64_t>::max(),
                           std::numeric_limits<int64_t>::max());
  ExpectRoundTrip<int64_t>({5, 300}, int64_t{1} << 40, int64_t{1} << 40);
}

TEST(PackEntries, RoundTripForEverySizeOfIds) {
  for (int bits = 1; bits < 63; ++bits) {
    ExpectRoundTrip<int64_t>({65}, int64_t{1} << bits, int64_t{1} << bits);
  }
}

TEST(PackEntries, RepeatedIdsAreStoredOnce) {
  const auto batch = RandomBatch<int64_t>({20000}, 10);
  const auto once = Pack(batch, 1 << 20, 1, true), each = Pack(batch, 1 << 20, 1, true, false);
  EXPECT_LT(once[0].size(), 20000 * 4 / 8 + 200);
  EXPECT_GT(each[0].size(), 20000u * 20 / 8);
}

TEST(PackEntries, AnInvalidBatchAllocatesNothing) {
  const auto refused = [](const Batch<int64_t>& batch, int64_t dim, int64_t parts) {
    return PackEntries(batch.csr(), dim, parts, true, Serial,
                       [](int64_t, int64_t) -> uint8_t* {
                         ADD_FAILURE() << "allocated";
                         return nullptr;
                       })
        .message();
  };
  auto batch = RandomBatch<int64_t>({2}, 1);
  batch.ids = {3, 9};
  EXPECT_EQ(refused(batch, 9, 2), "ids[1] = 9 is out of range [0, 9)");
  EXPECT_EQ(refused(batch, 10, 0), "parts must be at least 1, got 0");
  batch.row_splits = {0, 3};
  EXPECT_NE(refused(batch, 10, 1), "");
}

TEST(UnpackEntries, AnyBytesAreReadWithinBounds) {
  std::mt19937_64 random(1);
  const auto batch = RandomBatch<int64_t>({3, 0, 40}, 5);
  const Bytes good = Pack(batch, 300, 1)[0];
  for (size_t n = 0; n < good.size(); ++n) {
    Batch<int64_t> got;
    EXPECT_FALSE(Unpack(Bytes(good.begin(), good.begin() + n), &got).ok());
  }
  for (int round = 0; round < 20000; ++round) {
    Bytes bad = good;
    for (int i = 0; i < 3; ++i) bad[random() % std::min<size_t>(80, bad.size())] = random();
    Batch<int32_t> got;
    if (Unpack(bad, &got).ok()) {
      EXPECT_EQ(got.row_splits.back() + 1, static_cast<int64_t>(got.ids.size()));
    }
  }
}

TEST(UnpackEntries, AllocationIsBoundedByTheSizeOfTheMessage) {
  std::mt19937_64 random(2);
  auto batch = RandomBatch<int64_t>({3, 0, 40}, 5);
  batch.row_splits.resize(5000, batch.ids.size());  // a row without entries takes one bit
  for (const bool binary : {false, true}) {
    const Bytes good = Pack(batch, 300, 1, binary)[0];
    int accepted = 0;
    for (int round = 0; round < 5000; ++round) {
      Bytes bad = good;
      for (int i = 0; i < round % 4; ++i)
        bad[random() % std::min<size_t>(80, bad.size())] = random();
      const Status status =
          UnpackEntries<int64_t>(bad, [&](int64_t entries, int64_t rows, bool is_binary) {
            const int64_t item = is_binary ? 8 : 12;
            EXPECT_LE(entries * item + (rows + 1) * 8,
                      kMaxUnpackedBytesPerByte * static_cast<int64_t>(bad.size()));
            ++accepted;
            return UnpackedEntries<int64_t>{};
          });
    }
    EXPECT_GT(accepted, 1000);
  }
}

TEST(UnpackEntries, IdsMustFitIntoTheIdType) {
  auto batch = RandomBatch<int64_t>({1}, 1);
  const auto wide = Pack(batch, (int64_t{1} << 31) + 1, 1), fits = Pack(batch, int64_t{1} << 31, 1);
  Batch<int32_t> got;
  EXPECT_EQ(Unpack(wide[0], &got).message(),
            "packed has ids of 32 bits, which 32-bit integers cannot hold");
  EXPECT_TRUE(Unpack(fits[0], &got).ok());
}

// The ids, splits, rows and values of groups.
template <class Id>
auto ContentOf(const GroupedBatch<Id>& grouped) {
  return std::visit(
      [&](const auto& groups) {
        const int64_t u = groups.num_groups, n = grouped.num_entries;
        const bool has_values = groups.values.data() != nullptr;
        return std::make_tuple(
            std::vector<int64_t>(groups.ids.data(), groups.ids.data() + u),
            u == 0 ? std::vector<int64_t>{0}
                   : std::vector<int64_t>(groups.splits.data(), groups.splits.data() + u + 1),
            std::vector<int64_t>(groups.rows.data(), groups.rows.data() + n),
            std::vector<float>(groups.values.data(), groups.values.data() + (has_values ? n : 0)));
      },
      grouped.groups);
}

TEST(GroupPackedEntries, IsTheGroupingOfTheBatch) {
  for (const auto& lengths : std::vector<std::vector<int64_t>>{
           {}, {0, 0}, {1}, {63, 64, 65, 0, 128}, {0, 140000, 0, 130000, 0}}) {
    for (const int64_t dim : {1, 3, 300, 50000}) {
      const auto batch = RandomBatch<int32_t>(lengths, dim);
      for (const bool binary : {false, true}) {
        GroupedBatch<int32_t> want;
        ASSERT_TRUE(GroupBatch<int32_t>(batch.csr(binary), dim, nullptr, Serial, &want).ok());
        for (const bool deduplicate : {false, true}) {
          const Bytes message = Pack(batch, dim, 1, binary, deduplicate)[0];
          for (const int64_t shards : {1, 3}) {
            GroupedBatch<int32_t> got;
            const Status status = GroupPackedEntries(Span<const uint8_t>(message), binary, dim,
                                                     Sharded(shards), &got);
            ASSERT_TRUE(status.ok()) << status.message();
            EXPECT_EQ(got.num_rows, want.num_rows);
            EXPECT_EQ(got.num_entries, want.num_entries);
            EXPECT_EQ(ContentOf(got), ContentOf(want));
          }
        }
      }
    }
  }
}

TEST(GroupPackedEntries, AnyBytesAreReadWithinBounds) {
  std::mt19937_64 random(1);
  const auto batch = RandomBatch<int64_t>({3, 0, 40}, 5);
  const Bytes good = Pack(batch, 300, 1)[0];
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bad = good;
    for (int i = 0; i < 2; ++i) bad[random() % std::min<size_t>(90, bad.size())] = random();
    GroupedBatch<int64_t> got;
    if (!GroupPackedEntries(Span<const uint8_t>(bad), false, 300, Serial, &got).ok()) continue;
    ++accepted;
    const auto [ids, splits, rows, values] = ContentOf(got);
    EXPECT_EQ(splits.back(), got.num_entries);
    for (const int64_t row : rows) EXPECT_LT(row, got.num_rows);
    for (const int64_t id : ids) EXPECT_LT(id, 300);
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace packed_entries_test
}  // namespace twml
