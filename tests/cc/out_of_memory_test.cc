// Allocations that fail, one after another, in every place that allocates.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "cc/core/quantile_sketch.h"
#include "cc/core/scorer/row_reader.h"
#include "cc/core/tiered_rows.h"
#include "gtest/gtest.h"
#include "tests/cc/failing_allocations.h"
#include "tests/cc/scorer_folders.h"

namespace twml {

std::atomic<int64_t> allocations_left{-1};

}  // namespace twml

namespace {

void* Allocate(std::size_t size) {
  if (twml::allocations_left.load() >= 0 && twml::allocations_left.fetch_sub(1) == 0) {
    throw std::bad_alloc();
  }
  void* const block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return Allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace twml {
namespace out_of_memory_test {

constexpr int64_t kRows = 900, kWidth = 25, kBatch = 60;

class OutOfMemoryTest : public testing::TestWithParam<bool> {};

TEST_P(OutOfMemoryTest, NoRowIsLostInATableInAFile) {
  TieredRowsOptions options;
  const std::string name = "twml_memory_" + std::to_string(getpid());
  options.path = (std::filesystem::temp_directory_path() / name).string();
  options.num_rows = kRows;
  options.cache_rows = 4 * kBatch;
  options.prefetch_rows = kBatch;
  options.use_io_uring = GetParam();
  options.depth = 4;
  std::unique_ptr<TieredRows> rows;
  const std::string zeros(kWidth * 4, '\0');
  ASSERT_TRUE(TieredRows::Create(options, {{kWidth * 4, zeros}}, &rows).ok());
  std::vector<float> cache(rows->cache_rows() * kWidth), expected(kRows);
  char* pointer = reinterpret_cast<char*>(cache.data());
  const TieredRows::Cache part(&pointer, 1);
  std::mt19937_64 random(5);
  int64_t failures = 0, differences = 0;
  std::vector<std::vector<int64_t>> batches(120);
  std::vector<int64_t> places(kBatch), all(kRows);
  for (int64_t row = 0; row < kRows; ++row) all[row] = row;
  for (auto& batch : batches) {
    std::shuffle(all.begin(), all.end(), random);
    batch.assign(all.begin(), all.begin() + kBatch);
  }
  for (size_t step = 0; step < batches.size(); ++step) {
    const Span<const int64_t> ids(batches[step]);
    const size_t next = std::min(step + 1, batches.size() - 1);
    failures +=
        FailEachAllocation([&] { (void)rows->Prefetch(Span<const int64_t>(batches[next])); });
    Status status;
    failures += FailEachAllocation(
        [&] { status = rows->Map(ids, part, true, false, Serial, places.data()); });
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t i = 0; i < kBatch; ++i) {
      differences += cache[places[i] * kWidth] != expected[ids[i]];
    }
    failures += FailEachAllocation(
        [&] { status = rows->Map(ids, part, false, true, Serial, places.data()); });
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t i = 0; i < kBatch; ++i) {
      for (int64_t k = 0; k < kWidth; ++k) cache[places[i] * kWidth + k] += 1;
      ++expected[ids[i]];
    }
  }
  std::vector<float> found(kRows * kWidth);
  Status status;
  failures += FailEachAllocation(
      [&] { status = rows->ReadPart(0, 0, kRows, part, reinterpret_cast<char*>(found.data())); });
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < kWidth; ++k) differences += found[row * kWidth + k] != expected[row];
  }
  EXPECT_EQ(differences, 0);
  EXPECT_GT(failures, 1000);
}

// Requests of a call that ends by an exception must not be left behind: they write to memory that
// the caller may have given up.
TEST(OutOfMemory, NoReadOfSeveralFilesIsLeftBehind) {
  constexpr int64_t kRowsOfFile = 8, kBytes = 64;
  const std::string name = "twml_reads_" + std::to_string(getpid());
  std::vector<std::string> paths;
  for (const char* end : {"_a.npy", "_b.npy"}) {
    paths.push_back((std::filesystem::temp_directory_path() / (name + end)).string());
    WriteFile(paths.back(), Npy("<f4", {kRowsOfFile, kBytes / 4},
                                std::vector<float>(kRowsOfFile * kBytes / 4, 1)));
  }
  std::vector<char> buffer(2 * kRowsOfFile * kBytes);
  int64_t left_behind = 0;
  const int64_t failures = FailEachAllocation([&] {
    std::unique_ptr<scorer::NpyRowFile> files[2];
    bool threw = true;
    // Runs before the files are closed, which ends their threads after what they have to do.
    struct Check {
      ~Check() {
        if (!*threw) return;
        std::fill(buffer->begin(), buffer->end(), 'x');
        for (auto& file : *files) file.reset();
        *left_behind +=
            std::any_of(buffer->begin(), buffer->end(), [](char c) { return c != 'x'; });
      }
      std::vector<char>* buffer;
      std::unique_ptr<scorer::NpyRowFile> (*files)[2];
      bool* threw;
      int64_t* left_behind;
    };
    const Check check{&buffer, &files, &threw, &left_behind};
    for (int f = 0; f < 2; ++f) {
      if (!scorer::NpyRowFile::Open(paths[f], false, &files[f]).ok()) std::abort();
    }
    scorer::RowReaderOptions options;
    options.use_io_uring = false;
    options.depth = 2;
    options.delay_nanoseconds = 300'000;
    scorer::RowReader reader(options);
    std::vector<scorer::FileRead> reads;
    for (int64_t i = 0; i < 2 * kRowsOfFile; ++i) {
      const auto& file = files[i / kRowsOfFile];
      reads.push_back({file.get(), file->OffsetOf(i % kRowsOfFile), kBytes, kBytes,
                       buffer.data() + i * kBytes});
    }
    if (!reader.Read(reads).ok()) std::abort();
    threw = false;
  });
  for (const std::string& path : paths) std::filesystem::remove(path);
  EXPECT_EQ(left_behind, 0);
  EXPECT_GT(failures, 20);
}

// A call that fails must not change what later ones do.
// A sketch without entries, to which Update adds as many entries of `num_ids` ids.
struct SketchedEntries {
  SketchedEntries(int64_t entries, int64_t num_ids) : ids(entries), values(entries) {
    EXPECT_TRUE(QuantileSketch::Make({}, &sketch).ok());
    for (int64_t i = 0; i < entries; ++i) {
      ids[i] = i * i % num_ids;
      values[i] = static_cast<float>(i % 50);
    }
  }

  Status Update() { return sketch->Update(ids, values, {}, Serial); }

  double Count() const {
    const std::vector<int64_t> features = sketch->FeatureIds();
    std::vector<double> numbers(features.size() * QuantileSketch::kNumStatistics);
    sketch->Describe(features, numbers.data());
    double total = 0;
    for (size_t i = 0; i < features.size(); ++i) total += numbers[4 * i];
    return total;
  }

  std::unique_ptr<QuantileSketch> sketch;
  std::vector<int64_t> ids;
  std::vector<float> values;
};

TEST(OutOfMemory, ASketchCountsWhatItIsGivenAfterAnError) {
  SketchedEntries entries(3000, 700);
  int64_t differences = 0;
  // The next update must count the values that it is given, and no others.
  const int64_t failures = FailEachAllocation([&] { (void)entries.Update(); },
                                              [&](bool) {
                                                const double before = entries.Count();
                                                ASSERT_TRUE(entries.Update().ok());
                                                differences += entries.Count() != before + 3000;
                                              });
  EXPECT_EQ(differences, 0);
  EXPECT_GT(failures, 5);
}

TEST(OutOfMemory, MergedSketchesCountBothAfterAnError) {
  SketchedEntries into(2000, 300), from(2000, 400);
  ASSERT_TRUE(into.Update().ok());
  ASSERT_TRUE(from.Update().ok());
  int64_t wrong = 0;
  const auto merge = [&] { return into.sketch->Merge(*from.sketch, Serial); };
  const int64_t failures = FailEachAllocation([&] { (void)merge(); },
                                              [&](bool) {
                                                const double before = into.Count();
                                                ASSERT_TRUE(merge().ok());
                                                wrong += into.Count() != before + 2000;
                                                wrong += from.Count() != 2000;
                                              });
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(failures, 3);
}

INSTANTIATE_TEST_SUITE_P(All, OutOfMemoryTest, testing::Values(true, false));

}  // namespace out_of_memory_test
}  // namespace twml
