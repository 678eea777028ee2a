// Runs tasks of different sizes on one set of threads.
#ifndef TWML_CORE_PARALLEL_TASKS_H_
#define TWML_CORE_PARALLEL_TASKS_H_

#include <cstdint>
#include <functional>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// A task and its approximate time on one thread. The result must not depend on the number of
// threads that the task is given.
struct ParallelTask {
  int64_t nanoseconds;
  std::function<Status(const ParallelFor&)> run;
};

// Runs large tasks one after the other, each on all threads, and small tasks concurrently, each on
// one thread. All tasks run even if one fails. Returns the first error in the order of the tasks.
Status RunParallelTasks(Span<const ParallelTask> tasks, const ParallelFor& parallel_for);

}  // namespace twml

#endif  // TWML_CORE_PARALLEL_TASKS_H_
