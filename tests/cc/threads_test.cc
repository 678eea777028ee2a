#include "python/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace twml {
namespace threads_test {

constexpr int64_t kCost = 1'000'000;  // large enough that each unit gets a thread

TEST(Threads, EveryUnitRunsOnce) {
  for (const int threads : {1, 2, 5, 64}) {
    for (const int64_t total : {0, 1, 3, 100}) {
      std::vector<int> runs(total, 0);
      Threads(threads)(total, kCost, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++runs[i];
      });
      EXPECT_EQ(runs, std::vector<int>(total, 1));
    }
  }
}

TEST(Threads, AnExceptionReachesTheCallerAfterAllPartsAreDone) {
  for (const int threads : {1, 4}) {
    std::atomic<int64_t> done{0};
    std::string caught;
    try {
      Threads(threads)(4, kCost, [&](int64_t begin, int64_t end) {
        done += end - begin;
        if (end > 2) throw std::runtime_error(std::to_string(end));
      });
    } catch (const std::runtime_error& e) {
      caught = e.what();
    }
    EXPECT_EQ(done, 4);
    EXPECT_EQ(caught, threads == 1 ? "4" : "3");
  }
}

}  // namespace threads_test
}  // namespace twml
