#include "cc/core/parallel_tasks.h"

#include <vector>

namespace twml {

Status RunParallelTasks(Span<const ParallelTask> tasks, const ParallelFor& parallel_for) {
  // Nanoseconds. From here on, dividing a task among threads costs little compared with the task.
  constexpr int64_t kLarge = 200000;
  std::vector<Status> statuses(tasks.size());
  std::vector<int64_t> small;
  int64_t small_ns = 0;
  for (int64_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].nanoseconds >= kLarge) {
      statuses[i] = tasks[i].run(parallel_for);
    } else {
      small.push_back(i);
      small_ns += tasks[i].nanoseconds;
    }
  }
  const auto count = static_cast<int64_t>(small.size());
  parallel_for(count, count == 0 ? 0 : small_ns / count + 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) statuses[small[s]] = tasks[small[s]].run(Serial);
  });
  for (const Status& status : statuses) TWML_RETURN_IF_ERROR(status);
  return Status();
}

}  // namespace twml
