#include "cc/core/tiered_rows.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/testing.h"

namespace twml {
namespace tiered_rows_test {

struct Case {
  RowPolicy policy;
  bool direct, use_io_uring;
  int64_t prefetch_rows;
};

std::string ScratchPath(const char* name) {
  return (std::filesystem::temp_directory_path() /
          (std::string("twml_rows_") + name + "_" + std::to_string(getpid())))
      .string();
}

// A table with two parts whose cache is beside it.
class Table {
 public:
  Table(const TieredRowsOptions& options, int64_t first, int64_t second)
      : widths_{first, second}, options_(options) {
    const std::vector<RowPart> parts = {{first * 4, Bytes(first, 0.0f)},
                                        {second * 4, Bytes(second, 0.5f)}};
    const Status status = TieredRows::Create(options, parts, &rows_);
    EXPECT_TRUE(status.ok()) << status.message();
    for (const int64_t width : widths_) {
      cache_.emplace_back(rows_->cache_rows() * width, -1.0f);
    }
    for (auto& part : cache_) pointers_.push_back(reinterpret_cast<char*>(part.data()));
  }

  static std::string Bytes(int64_t width, float value) {
    const std::vector<float> values(width, value);
    return std::string(reinterpret_cast<const char*>(values.data()), width * 4);
  }

  Span<char* const> cache() { return Span<char* const>(pointers_.data(), 2); }
  float* Row(int part, int64_t place) { return cache_[part].data() + place * widths_[part]; }
  TieredRows* operator->() { return rows_.get(); }

  // Adds 1 to the first part and 2 to the second one.
  Status Add(std::vector<int64_t> ids) {
    std::vector<int64_t> places(ids.size());
    TWML_RETURN_IF_ERROR(
        rows_->Map(Span<const int64_t>(ids), cache(), false, true, Serial, places.data()));
    for (const int64_t place : places) {
      for (int64_t c = 0; c < widths_[0]; ++c) Row(0, place)[c] += 1;
      for (int64_t c = 0; c < widths_[1]; ++c) Row(1, place)[c] += 2;
    }
    return Status();
  }

 private:
  std::vector<int64_t> widths_;
  TieredRowsOptions options_;
  std::unique_ptr<TieredRows> rows_;
  std::vector<std::vector<float>> cache_;
  std::vector<char*> pointers_;
};

std::vector<int64_t> Ids(std::mt19937_64* random, int64_t count, int64_t num_rows, bool repeat) {
  std::vector<int64_t> ids;
  std::vector<bool> seen(num_rows);
  for (int64_t i = 0; i < count; ++i) {
    const double u = std::uniform_real_distribution<double>(0, 1)(*random);
    const auto id = static_cast<int64_t>(u * u * u * static_cast<double>(num_rows));
    if (!repeat && seen[id]) continue;
    seen[id] = true;
    ids.push_back(id);
  }
  return ids;
}

class TieredRowsTest : public testing::TestWithParam<Case> {};

TEST_P(TieredRowsTest, RowsAreThoseOfATableInMemory) {
  constexpr int kSteps = 60;
  const Case& c = GetParam();
  for (const auto& [num_rows, first, second] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1, 1, 1}, {40, 3, 2}, {1500, 128, 128}, {2000, 16, 1}, {300, 1100, 7}}) {
    TieredRowsOptions options;
    options.path = ScratchPath("memory");
    options.num_rows = num_rows;
    options.cache_rows = num_rows / 8 + 1;
    options.prefetch_rows = c.prefetch_rows;
    options.policy = c.policy;
    options.direct = c.direct;
    options.use_io_uring = c.use_io_uring;
    options.depth = 8;
    Table table(options, first, second);
    std::mt19937_64 random(num_rows);
    std::vector<float> expected(num_rows * first);
    for (auto& value : expected) value = static_cast<float>(random() % 1000);
    const int64_t half = num_rows / 2;
    const auto* const values = reinterpret_cast<const char*>(expected.data());
    ASSERT_TRUE(table->WritePart(0, 0, half, values, table.cache()).ok());
    ASSERT_TRUE(
        table->WritePart(0, half, num_rows - half, values + half * first * 4, table.cache()).ok());
    std::vector<int64_t> times(num_rows);
    const int64_t most = std::max<int64_t>(1, table->cache_rows() / 2);
    std::vector<std::vector<int64_t>> batches;
    for (int step = 0; step < kSteps; ++step)
      batches.push_back(Ids(&random, most, num_rows, false));
    for (int step = 0; step < kSteps; ++step) {
      for (int ahead = step == 0 ? 0 : 2; ahead < 3 && step + ahead < kSteps; ++ahead) {
        ASSERT_TRUE(table->Prefetch(Span<const int64_t>(batches[step + ahead])).ok());
      }
      const auto& ids = batches[step];
      std::vector<int64_t> places(ids.size());
      const Status status = table->Map(Span<const int64_t>(ids), table.cache(), true, false,
                                       Sharded(2), places.data());
      ASSERT_TRUE(status.ok()) << status.message();
      for (size_t i = 0; i < ids.size(); ++i) {
        const float add = static_cast<float>(times[ids[i]]);
        for (int64_t k = 0; k < first; ++k) {
          ASSERT_EQ(table.Row(0, places[i])[k], expected[ids[i] * first + k] + add);
        }
        for (int64_t k = 0; k < second; ++k) {
          ASSERT_EQ(table.Row(1, places[i])[k], 0.5f + 2 * add);
        }
      }
      if (step % 3 == 2) continue;  // a lookup without an update
      ASSERT_TRUE(table.Add(ids).ok());
      for (const int64_t id : ids) ++times[id];
    }
    std::vector<float> read(num_rows * first), slots(num_rows * second);
    ASSERT_TRUE(
        table->ReadPart(0, 0, num_rows, table.cache(), reinterpret_cast<char*>(read.data())).ok());
    std::vector<int64_t> all(num_rows);
    for (int64_t i = 0; i < num_rows; ++i) all[i] = num_rows - 1 - i;
    std::vector<float> same(num_rows * first);
    ASSERT_TRUE(table
                    ->ReadRows(all, table.cache(),
                               {reinterpret_cast<char*>(same.data()),
                                reinterpret_cast<char*>(slots.data())})
                    .ok());
    for (int64_t row = 0; row < num_rows; ++row) {
      const float add = static_cast<float>(times[row]);
      for (int64_t k = 0; k < first; ++k) {
        ASSERT_EQ(read[row * first + k], expected[row * first + k] + add);
        ASSERT_EQ(same[(num_rows - 1 - row) * first + k], expected[row * first + k] + add);
      }
      ASSERT_EQ(slots[(num_rows - 1 - row) * second], 0.5f + 2 * add);
    }
    if (num_rows == 1500) {
      TieredRows::Statistics found;
      ASSERT_TRUE(table->GetStatistics(&found).ok());
      EXPECT_GT(found.misses, 0);
      EXPECT_GT(found.store.bytes_written, found.written_back * (first + second) * 4 / 2);
      EXPECT_EQ(found.prefetched > 0, c.prefetch_rows > 0);
    }
  }
}

// AttachSlots replaces the file, and the kernel of the statistics has no lock of the table.
TEST(TieredRows, StatisticsMayBeReadWhileTheFileIsReplaced) {
  TieredRowsOptions options;
  const std::string name = "twml_statistics_" + std::to_string(getpid());
  options.path = (std::filesystem::temp_directory_path() / name).string();
  options.num_rows = 100;
  options.cache_rows = 16;
  options.direct = options.use_io_uring = false;
  options.depth = 1;
  const RowPart weights = {8, std::string(8, 'a')};
  std::unique_ptr<TieredRows> table;
  ASSERT_TRUE(TieredRows::Create(options, {weights}, &table).ok());
  std::atomic<bool> ends{false};
  std::atomic<int64_t> read{0};
  std::thread reader([&] {
    do {
      TieredRows::Statistics found;
      read += table->GetStatistics(&found).ok() && !found.direct && !found.uses_io_uring ? 1 : 0;
    } while (!ends);
  });
  for (int64_t i = 0; i < 30; ++i) {
    const int64_t slot = 4 + i % 2 * 4;
    EXPECT_TRUE(table->SetParts({weights, {slot, std::string(slot, 'b')}}).ok());
  }
  ends = true;
  reader.join();
  EXPECT_GT(read, 0);
}

INSTANTIATE_TEST_SUITE_P(All, TieredRowsTest,
                         testing::Values(Case{RowPolicy::kLru, true, true, 0},
                                         Case{RowPolicy::kLru, true, true, 7},
                                         Case{RowPolicy::kLru, true, true, 1000},
                                         Case{RowPolicy::kLfu, false, true, 100},
                                         Case{RowPolicy::kLfu, true, false, 100},
                                         Case{RowPolicy::kLru, false, false, 0}));

}  // namespace tiered_rows_test
}  // namespace twml
