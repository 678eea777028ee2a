// Many tasks of work of unlike size on one set of threads.
#ifndef TWML_CORE_PARALLEL_TASKS_H_
#define TWML_CORE_PARALLEL_TASKS_H_

#include <cstdint>
#include <functional>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// One piece: about how long it takes on one thread, and the work itself, which must not depend on
// how many threads it is given.
struct ParallelTask {
  int64_t nanoseconds;
  std::function<Status(const ParallelFor&)> run;
};

// Large tasks run one after the other, each on all threads; small ones side by side, a thread
// each. Returns the first error in the order of the tasks; the others run all the same.
Status RunParallelTasks(Span<const ParallelTask> tasks, const ParallelFor& parallel_for);

}  // namespace twml

#endif  // TWML_CORE_PARALLEL_TASKS_H_
