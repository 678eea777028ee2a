// Threads share the caches of tables in files: they get the rows of the file, whoever reads them.
#include "cc/core/scorer/table_files.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace twml::scorer {
namespace table_files_test {

constexpr int64_t kRows = 400, kWidth = 6;

float ItemOf(int64_t row, int64_t column) { return static_cast<float>(row * 10 + column); }

// Writes an NPY file in which item (r, c) is ItemOf(r, c).
std::string WriteTable(const std::string& name) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" +
                       std::to_string(kRows) + ", " + std::to_string(kWidth) + "), }";
  header.resize(117, ' ');
  header += '\n';
  std::string path = testing::TempDir() + name;
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY" << '\1' << '\0' << static_cast<char>(header.size()) << '\0' << header;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kWidth; ++c) {
      const float item = ItemOf(r, c);
      file.write(reinterpret_cast<const char*>(&item), sizeof(item));
    }
  }
  return path;
}

class TableFilesTest : public testing::TestWithParam<bool> {
 protected:
  void Open(int64_t cache_bytes, int64_t sums_cache_bytes = 0) {
    TableOptions options;
    options.storage = TableStorage::kFile;
    options.cache_bytes = cache_bytes;
    options.sums_cache_bytes = sums_cache_bytes;
    options.reader.depth = 3;
    options.reader.use_io_uring = GetParam();
    files_ = std::make_unique<TableFiles>(options);
    for (const char* name : {"first.npy", "second.npy"}) {
      std::unique_ptr<FileTable> table;
      const Status opened = FileTable::Open(WriteTable(name), ArrayFile(), "", false, &table);
      ASSERT_TRUE(opened.ok()) << opened.message();
      files_->Add(std::move(table));
    }
    files_->Finish();
  }

  // Fetches rows of both tables; returns whether they equal the rows of the files.
  bool FetchAndCompare(const std::vector<int64_t>& ids, FetchedRows* fetched) const {
    fetched->Begin(files_->size(), 1);
    for (RowsOfTable& table : fetched->tables) {
      table.AddIds(ids.data(), static_cast<int64_t>(ids.size()));
    }
    if (!files_->Fetch(fetched).ok()) return false;
    for (const RowsOfTable& table : fetched->tables) {
      const auto* const rows = reinterpret_cast<const float*>(table.rows.data());
      for (size_t i = 0; i < ids.size(); ++i) {
        for (int64_t c = 0; c < kWidth; ++c) {
          if (rows[table.slots(0)[i] * kWidth + c] != ItemOf(ids[i], c)) return false;
        }
      }
    }
    return true;
  }

  std::unique_ptr<TableFiles> files_;
};

INSTANTIATE_TEST_SUITE_P(WithAndWithoutIoUring, TableFilesTest, testing::Bool());

TEST_P(TableFilesTest, ThreadsGetTheRowsOfTheFilesWhileRowsLeaveTheCache) {
  for (const int64_t cache_bytes : {0, 4000, 1 << 20}) {
    Open(cache_bytes);
    std::vector<std::thread> threads;
    std::vector<int> wrong(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        FetchedRows fetched;
        for (int64_t k = 0; k < 50; ++k) {
          std::vector<int64_t> ids;
          for (int64_t i = 0; i < 40; ++i) ids.push_back((i * i + 7 * k + t) % kRows);
          if (!FetchAndCompare(ids, &fetched)) ++wrong[t];
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4));
    const TableStatistics s = files_->statistics();
    EXPECT_EQ(s.entries, 2 * 4 * 50 * 40);
    EXPECT_EQ(s.hits + s.misses, s.rows);
    EXPECT_EQ(s.bytes_needed, s.misses * kWidth * 4);
  }
}

TEST(SumsCacheTest, ThreadsGetTheSumsOfTheirTerms) {
  SumsCache cache(1 << 16);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string key;
      std::vector<float> found;
      for (int64_t k = 0; k < 2000; ++k) {
        const int64_t ids[] = {k % 70, (k + t) % 70, 3};
        const float sum[] = {static_cast<float>(ids[0] * 100 + ids[1])};
        found.clear();
        const SumTerms terms = {1, ids, nullptr, 3};
        if (!cache.Find(terms, &key, &found)) {
          cache.Insert(terms, sum, 1, &key);
        } else if (found != std::vector<float>{sum[0]}) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
  EXPECT_LE(cache.bytes(), 1 << 16);
  EXPECT_GT(cache.bytes(), 0);
}

TEST(SumsCacheTest, ASumIsKeptOnceAndWhileItIsUsed) {
  SumsCache cache(1 << 16);
  std::string key;
  std::vector<float> found;
  const float sum[] = {1.5f};
  const int64_t used[] = {-1, 3};
  cache.Insert({1, used, nullptr, 2}, sum, 1, &key);
  const int64_t bytes = cache.bytes();
  cache.Insert({1, used, nullptr, 2}, sum, 1, &key);
  EXPECT_EQ(cache.bytes(), bytes);
  for (int64_t k = 0; k < 2000; ++k) {  // more than there is room for
    ASSERT_TRUE(cache.Find({1, used, nullptr, 2}, &key, &found));
    const int64_t other[] = {k, 3};
    cache.Insert({1, other, nullptr, 2}, sum, 1, &key);
  }
  EXPECT_LE(cache.bytes(), 1 << 16);
  EXPECT_LT(cache.bytes(), 2000 * bytes);
  const float values[] = {1.0f, 1.0f};
  EXPECT_FALSE(cache.Find({1, used, values, 2}, &key, &found));
  EXPECT_FALSE(cache.Find({2, used, nullptr, 2}, &key, &found));
}

}  // namespace table_files_test
}  // namespace twml::scorer
