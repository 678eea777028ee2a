// A ParallelFor on std::thread for callers without a pool of their own.
#ifndef TWML_PYTHON_THREADS_H_
#define TWML_PYTHON_THREADS_H_

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

#include "cc/core/parallel.h"

namespace twml {

// Runs part(s) once for each s in [0, parts), part 0 on the calling thread and the others on
// threads of their own, or on the calling one too where the system gives no more threads. Returns
// when all are done; then throws what the first part that failed has thrown.
template <class Part>
void RunOnThreads(int64_t parts, const Part& part) {
  std::vector<std::exception_ptr> thrown(parts);
  const auto run = [&](int64_t s) noexcept {
    try {
      part(s);
    } catch (...) {
      thrown[s] = std::current_exception();
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
  for (const std::exception_ptr& e : thrown) {
    if (e) std::rethrow_exception(e);
  }
}

// num_threads <= 0: one for each core. Work of less than 0.2 ms a thread is not worth a thread.
inline ParallelFor Threads(int num_threads) {
  // Asked once: the answer is read from a file.
  static const int64_t kCores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t most = num_threads > 0 ? num_threads : kCores;
  return [most](int64_t total, int64_t cost_per_unit,
                const std::function<void(int64_t, int64_t)>& body) {
    constexpr int64_t kWorthIt = 200'000;
    const int64_t worth =
        total / std::max<int64_t>(1, kWorthIt / std::max<int64_t>(1, cost_per_unit));
    const int64_t shards = std::clamp<int64_t>(std::min(worth, total), 1, most);
    if (total <= 0) return;
    if (shards == 1) return body(0, total);
    RunOnThreads(shards, [&](int64_t s) { body(total * s / shards, total * (s + 1) / shards); });
  };
}

}  // namespace twml

#endif  // TWML_PYTHON_THREADS_H_
