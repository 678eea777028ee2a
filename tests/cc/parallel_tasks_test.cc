#include "cc/core/parallel_tasks.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/cc/testing.h"

namespace twml {
namespace parallel_tasks_test {

TEST(ParallelTasks, EveryTaskRunsOnce) {
  std::vector<int> runs(50);
  std::vector<ParallelTask> tasks;
  for (int i = 0; i < 50; ++i) {
    tasks.push_back({i % 7 == 0 ? 1000000 : 1000, [&runs, i](const ParallelFor&) {
                       ++runs[i];
                       return Status();
                     }});
  }
  EXPECT_TRUE(RunParallelTasks(tasks, Serial).ok());
  EXPECT_EQ(runs, std::vector<int>(50, 1));
}

TEST(ParallelTasks, OnlyLargeTasksGetSeveralThreads) {
  int inner = 0;
  const ParallelFor counted = [&](int64_t total, int64_t,
                                  const std::function<void(int64_t, int64_t)>& body) {
    ++inner;
    if (total > 0) body(0, total);
  };
  const auto run = [](const ParallelFor& parallel_for) {
    parallel_for(1, 1, [](int64_t, int64_t) {});
    return Status();
  };
  const std::vector<ParallelTask> tasks = {{1000000, run}, {10, run}, {1000000, run}};
  EXPECT_TRUE(RunParallelTasks(tasks, counted).ok());
  EXPECT_EQ(inner, 3);  // two large tasks and the loop over the small one
}

TEST(ParallelTasks, ReturnsTheFirstErrorAndRunsAllTasks) {
  int runs = 0;
  const auto fails = [&](const char* why) {
    return [&runs, why](const ParallelFor&) {
      ++runs;
      return Invalid(why);
    };
  };
  const std::vector<ParallelTask> tasks = {
      {1, [](const ParallelFor&) { return Status(); }}, {1, fails("b")}, {1000000, fails("c")}};
  EXPECT_EQ(RunParallelTasks(tasks, Serial).message(), "b");
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(RunParallelTasks(std::vector<ParallelTask>(), Serial).ok());
}

}  // namespace parallel_tasks_test
}  // namespace twml
