// Threads that wait for work, for callers that have none of their own.
#ifndef TWML_SERVING_THREAD_POOL_H_
#define TWML_SERVING_THREAD_POOL_H_

#include <cstdint>
#include <functional>

#include "cc/core/fork.h"
#include "cc/core/parallel.h"

namespace twml::serving {

// Any number of callers may use a pool at the same time. A caller works on its own ranges too, and
// waits for other threads only while they are in one of them. A child of fork() has threads of its
// own.
class ThreadPool {
 public:
  // The calling threads count: a pool of one thread creates none. Fewer threads are created if the
  // system does not allow more.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();  // no call may be in progress
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // A ParallelFor on at most max_threads threads. Ranges are of at least 50 microseconds of work.
  // After a range has thrown, the remaining ones are skipped, and the first exception is rethrown.
  void Run(int64_t total, int64_t cost_per_unit, int max_threads,
           const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Job;
  class Workers;

  Workers& workers() const;

  const int wanted_;
  PerProcess<Workers> workers_;
};

}  // namespace twml::serving

#endif  // TWML_SERVING_THREAD_POOL_H_
