#include "cc/serving/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <system_error>

namespace twml::serving {

struct ThreadPool::Job {
  int64_t total, ranges;
  const std::function<void(int64_t, int64_t)>& body;
  int helpers;                     // that may still join
  std::atomic<int64_t> next{0};    // the first range that nobody has taken
  int active = 0;                  // helpers that are in the job, guarded by mu_
  std::condition_variable done{};  // active is 0

  // Works until no range is left.
  void Take() {
    for (int64_t i = next.fetch_add(1); i < ranges; i = next.fetch_add(1)) {
      body(total * i / ranges, total * (i + 1) / ranges);
    }
  }
};

ThreadPool::ThreadPool(int num_threads) {
  jobs_.reserve(64);  // before there are threads, which read it
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
  } catch (const std::system_error&) {
    // The threads that there are do the work.
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    ends_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Work() {
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    wake_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (ends_) return;
    Job& job = *jobs_.front();
    if (--job.helpers == 0) jobs_.erase(jobs_.begin());
    ++job.active;
    lock.unlock();
    job.Take();
    lock.lock();
    if (--job.active == 0) job.done.notify_one();
  }
}

void ThreadPool::Run(int64_t total, int64_t cost_per_unit, int max_threads,
                     const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kMinNanoseconds = 50'000;
  constexpr int64_t kRangesPerThread = 4;  // so that a late thread finds less work
  if (total <= 0) return;
  const int64_t cost = std::max<int64_t>(1, cost_per_unit);
  const int64_t per_range = std::max<int64_t>(1, kMinNanoseconds / cost);
  const int64_t useful = (total + per_range - 1) / per_range;
  const int64_t threads = std::min<int64_t>({num_threads(), max_threads, useful});
  if (threads <= 1) {
    body(0, total);
    return;
  }
  Job job{total, std::min(useful, threads * kRangesPerThread), body, static_cast<int>(threads) - 1};
  {
    std::lock_guard<std::mutex> lock(mu_);
    jobs_.push_back(&job);
  }
  for (int64_t i = 1; i < threads; ++i) wake_.notify_one();
  job.Take();
  std::unique_lock<std::mutex> lock(mu_);
  const auto found = std::find(jobs_.begin(), jobs_.end(), &job);
  if (found != jobs_.end()) jobs_.erase(found);
  job.done.wait(lock, [&job] { return job.active == 0; });
}

}  // namespace twml::serving
