// Allocations that fail, one after another, in every place that allocates.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "cc/core/tiered_rows.h"
#include "gtest/gtest.h"

namespace {

std::atomic<int64_t> allocations_left{
    -1};  // of all threads, until one fails; negative: all succeed

void* Allocate(std::size_t size) {
  if (allocations_left.load() >= 0 && allocations_left.fetch_sub(1) == 0) throw std::bad_alloc();
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
namespace {

constexpr int64_t kRows = 900, kWidth = 25, kBatch = 60;

// Calls body() again and again; its allocation number 0, 1, 2, ... fails. Stops when none has
// failed. Returns how many have.
template <class Body>
int64_t FailEachAllocation(Body body) {
  for (int64_t number = 0;; ++number) {
    allocations_left = number;
    try {
      body();
    } catch (const std::bad_alloc&) {
    }
    if (allocations_left.exchange(-1) >= 0) return number;
  }
}

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

INSTANTIATE_TEST_SUITE_P(All, OutOfMemoryTest, testing::Values(true, false));

}  // namespace
}  // namespace twml
