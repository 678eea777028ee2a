// What a child of fork() may use works in it, whatever the threads of its parent did at that
// moment; the rest is an error. The thread sanitizer does not support threads in such a child, and
// the allocator of the address sanitizer may stay locked in it if other threads allocate.
#include "cc/core/fork.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/scratch.h"
#include "cc/core/tiered_rows.h"
#include "cc/serving/served_model.h"
#include "cc/serving/thread_pool.h"
#include "tests/cc/scorer_folders.h"

namespace twml {
namespace fork_test {

#ifdef __SANITIZE_THREAD__
constexpr bool kThreadsInChildren = false;
#else
constexpr bool kThreadsInChildren = true;
#endif
#ifdef __SANITIZE_ADDRESS__
constexpr int kBusyThreads = 0;
#else
constexpr int kBusyThreads = 3;
#endif

// Whether body() returns true in a child. A child that hangs is ended by a signal.
template <class Body>
bool InChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(100);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Calls body() on threads again and again while it exists.
class Busy {
 public:
  template <class Body>
  explicit Busy(const Body& body) {
    for (int t = 0; t < kBusyThreads; ++t) {
      threads_.emplace_back([this, body] {
        while (!ends_) body();
      });
    }
  }
  ~Busy() {
    ends_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

TEST(Fork, EachProcessHasItsOwnObjects) {
  const int64_t number = ForkNumber();
  const PerProcess<int> own;
  own.Get() = 7;
  const OwnedByProcess<std::string> text(new std::string(100, 'x'));
  EXPECT_TRUE(InChild([&] {
    return ForkNumber() != number && own.Get() == 0 && ++own.Get() == 1 && text->size() == 100;
  }));
  EXPECT_EQ(ForkNumber(), number);
  EXPECT_EQ(own.Get(), 7);
}

TEST(Fork, PoolsOfThreadsAndMemoryWorkInAChild) {
  if (!kThreadsInChildren) GTEST_SKIP();
  serving::ThreadPool pool(4);
  const auto sum = [&pool] {
    std::atomic<int64_t> total{0};
    pool.Run(1000, 1'000'000, 4, [&](int64_t begin, int64_t end) {
      const Scratch<int64_t> memory(5000);
      for (int64_t i = begin; i < end; ++i) total += memory[0] = i;
    });
    return total == 999 * 500;
  };
  const Busy busy(sum);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(InChild([&] { return sum() && sum(); })) << i;
}

TEST(Fork, AModelWithTablesInFilesAnswersInAChild) {
  if (!kThreadsInChildren) GTEST_SKIP();
  constexpr int64_t kRows = 2000, kWidth = 8, kEntries = 60;
  const TemporaryFolder root;
  std::vector<float> table(kRows * kWidth);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
  WriteFolder(root / "model",
              {{"table.npy", Npy("<f4", {kRows, kWidth}, table)}, {"scorer.json", R"({"format": 1,
 "inputs": {"ids": "ids", "splits": "row_splits"},
 "steps": [{"op": "sparse_linear", "in": ["ids", null, "splits"], "out": ["y"],
            "arrays": {"table": "table.npy"}, "attributes": {}}], "output": "y"})"}});
  for (const bool io_uring : {true, false}) {
    scorer::TableOptions options;
    options.storage = scorer::TableStorage::kFile;
    options.cache_bytes = 1 << 14;  // a few rows, so that most of them are read
    options.sums_cache_bytes = 1 << 12;
    options.least_bytes = 1;
    options.reader.use_io_uring = io_uring;
    std::unique_ptr<serving::ServedModel> model;
    ASSERT_TRUE(serving::ServedModel::Load(root / "model", options, &model).ok());
    const auto right = [&model](uint64_t seed) {
      std::mt19937_64 random(seed);
      for (int n = 0; n < 10; ++n) {
        std::vector<int64_t> ids, splits{0};
        for (int64_t k = 0; k < kEntries; ++k) {
          ids.push_back(static_cast<int64_t>(random() % kRows));
          splits.push_back(k + 1);
        }
        std::vector<scorer::RequestArray> arrays(2);
        arrays[0].data = ids.data();
        arrays[0].size = kEntries;
        arrays[1].data = splits.data();
        arrays[1].size = kEntries + 1;
        scorer::Request request;
        request.arrays = arrays;
        request.rows = kEntries;
        std::vector<float> out(kEntries * kWidth);
        const auto current = model->Get();
        if (!current->Predict(request, Serial, out.data(), kEntries * kWidth).ok()) return false;
        for (int64_t k = 0; k < kEntries; ++k) {
          if (out[k * kWidth] != static_cast<float>(ids[k] * kWidth)) return false;
        }
      }
      return true;
    };
    std::atomic<uint64_t> seed{0};
    const Busy busy([&] { right(++seed); });
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(InChild([&] {
        std::thread beside([&] { right(1); });
        const bool first = right(2);
        beside.join();
        return first && model->Reload(root / "model").ok() && right(3);
      })) << i;
    }
  }
}

TEST(Fork, ATableInAFileIsAnErrorInAChildAndStaysThatOfTheParent) {
  TieredRowsOptions options;
  const std::string name = "twml_fork_" + std::to_string(getpid());
  options.path = (std::filesystem::temp_directory_path() / name).string();
  options.num_rows = 500;
  options.cache_rows = 32;
  options.prefetch_rows = 20;
  options.direct = false;
  std::unique_ptr<TieredRows> rows;
  ASSERT_TRUE(TieredRows::Create(options, {{8, std::string(8, 'a')}}, &rows).ok());
  std::vector<char> memory(rows->cache_rows() * 8);
  char* const begin = memory.data();
  const TieredRows::Cache cache(&begin, 1);
  std::vector<int64_t> ids(30), places(30);
  const auto update = [&](int64_t from, char value) {
    for (int64_t i = 0; i < 30; ++i) ids[i] = from + i;
    if (!rows->Map(Span<const int64_t>(ids), cache, true, true, Serial, places.data()).ok()) {
      return false;
    }
    for (const int64_t place : places) std::fill_n(memory.data() + 8 * place, 8, value);
    return true;
  };
  for (int64_t from = 0; from < 450; from += 30) ASSERT_TRUE(update(from, 'b'));
  EXPECT_TRUE(InChild([&] {
    TieredRows::Statistics statistics;
    const Status status = rows->GetStatistics(&statistics);
    const bool refused = !update(0, 'c') && status.message().find("fork()") != std::string::npos;
    rows.reset();  // does not wait for threads, and leaves the file
    return refused;
  }));
  EXPECT_TRUE(std::filesystem::exists(options.path));
  std::vector<char> found(450 * 8);
  ASSERT_TRUE(rows->ReadPart(0, 0, 450, cache, found.data()).ok());
  EXPECT_EQ(std::string(found.begin(), found.end()), std::string(450 * 8, 'b'));
}

}  // namespace fork_test
}  // namespace twml
