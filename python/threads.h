// A ParallelFor that creates threads, for callers without a thread pool.
#ifndef TWML_PYTHON_THREADS_H_
#define TWML_PYTHON_THREADS_H_

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

#include "cc/core/parallel.h"

namespace twml {

// Calls part(s) once for each s in [0, parts). Part 0 runs on the calling thread and each other
// part on a new thread, or on the calling thread if the system cannot create more threads. Returns
// when all parts are done, and rethrows the exception of the first part that threw one.
template <class Part>
void RunOnThreads(int64_t parts, const Part& part) {
  std::vector<std::exception_ptr> exceptions(parts);
  const auto run = [&](int64_t s) noexcept {
    try {
      part(s);
    } catch (...) {
      exceptions[s] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(parts - 1);
  int64_t started = 1;
  try {
    for (; started < parts; ++started) threads.emplace_back(run, started);
  } catch (const std::exception&) {
  }
  run(0);
  for (int64_t s = started; s < parts; ++s) run(s);
  for (auto& t : threads) t.join();
  for (const std::exception_ptr& e : exceptions) {
    if (e) std::rethrow_exception(e);
  }
}

// Uses at most num_threads threads, or one per core if num_threads <= 0. A thread is created only
// for at least 0.2 ms of work.
inline ParallelFor Threads(int num_threads) {
  // Computed once, because the system reads the answer from a file.
  static const int64_t kCores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t max_threads = num_threads > 0 ? num_threads : kCores;
  return [max_threads](int64_t total, int64_t cost_per_unit,
                       const std::function<void(int64_t, int64_t)>& body) {
    constexpr int64_t kMinNsPerThread = 200'000;
    const int64_t useful =
        total / std::max<int64_t>(1, kMinNsPerThread / std::max<int64_t>(1, cost_per_unit));
    const int64_t shards = std::clamp<int64_t>(std::min(useful, total), 1, max_threads);
    if (total <= 0) return;
    if (shards == 1) return body(0, total);
    RunOnThreads(shards, [&](int64_t s) { body(total * s / shards, total * (s + 1) / shards); });
  };
}

}  // namespace twml

#endif  // TWML_PYTHON_THREADS_H_
