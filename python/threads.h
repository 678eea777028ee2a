// A ParallelFor on std::thread for callers without a pool of their own.
#ifndef TWML_PYTHON_THREADS_H_
#define TWML_PYTHON_THREADS_H_

#include <algorithm>
#include <thread>
#include <vector>

#include "cc/core/parallel.h"

namespace twml {

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
    std::vector<std::thread> threads;
    for (int64_t s = 1; s < shards; ++s) {
      threads.emplace_back([&, s] { body(total * s / shards, total * (s + 1) / shards); });
    }
    if (total > 0) body(0, total / shards);  // the calling thread takes the first
    for (auto& t : threads) t.join();
  };
}

}  // namespace twml

#endif  // TWML_PYTHON_THREADS_H_
