#include "cc/core/block_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace twml {
namespace block_queue_test {

// Runs the loop on `threads` threads, including the calling thread, which owns the body.
void RunLoop(int64_t total, int64_t blocks, int threads,
             const std::function<void(int64_t, int64_t)>& body) {
  BlockQueue queue(total, blocks);
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back([&] { queue.RunBlocks(body); });
  queue.RunBlocks(body);
  std::exception_ptr thrown;
  try {
    queue.Wait();
  } catch (...) {
    thrown = std::current_exception();
  }
  for (auto& t : others) t.join();
  if (thrown) std::rethrow_exception(thrown);
}

TEST(BlockQueue, EveryUnitRunsOnce) {
  for (const int64_t total : {1, 7, 64, 1000}) {
    for (const int64_t blocks : {int64_t{1}, int64_t{3}, total}) {
      if (blocks > total) continue;
      std::vector<std::atomic<int>> runs(total);
      RunLoop(total, blocks, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++runs[i];
      });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(BlockQueue, AnExceptionOfABlockReachesTheCaller) {
  for (const int threads : {1, 4}) {
    for (const int64_t bad : {0, 50, 99}) {
      const auto body = [bad](int64_t begin, int64_t) {
        if (begin == bad) throw std::bad_alloc();
      };
      EXPECT_THROW(RunLoop(100, 100, threads, body), std::bad_alloc);
    }
  }
}

TEST(BlockQueue, NoBlockIsRunningWhenTheCallerGetsTheException) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> running{0};
    BlockQueue queue(64, 64);
    const auto body = [&](int64_t begin, int64_t) {
      ++running;
      std::this_thread::yield();
      --running;
      if (begin % 8 == 0) throw std::bad_alloc();
    };
    std::vector<std::thread> others;
    for (int t = 1; t < 4; ++t) others.emplace_back([&] { queue.RunBlocks(body); });
    queue.RunBlocks(body);
    EXPECT_THROW(queue.Wait(), std::bad_alloc);
    EXPECT_EQ(running, 0);
    for (auto& t : others) t.join();
  }
}

TEST(BlockQueue, OneOfManyExceptionsReachesTheCaller) {
  const auto body = [](int64_t, int64_t) { throw std::runtime_error("no"); };
  for (int round = 0; round < 20; ++round)
    EXPECT_THROW(RunLoop(64, 64, 4, body), std::runtime_error);
}

TEST(BlockQueue, BlocksAfterAFailureAreSkipped) {
  int runs = 0;
  BlockQueue queue(10, 10);
  queue.RunBlocks([&](int64_t begin, int64_t) {
    ++runs;
    if (begin == 3) throw std::bad_alloc();
  });
  EXPECT_THROW(queue.Wait(), std::bad_alloc);
  EXPECT_EQ(runs, 4);
}

}  // namespace block_queue_test
}  // namespace twml
