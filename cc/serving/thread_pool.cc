#include "cc/serving/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace twml::serving {

struct ThreadPool::Job {
  int64_t total, ranges;
  const std::function<void(int64_t, int64_t)>& body;
  int helpers;                     // may still join, guarded by the lock of the pool
  std::atomic<int64_t> next{0};    // the first range that no thread has taken
  int active = 0;                  // helpers that are in the job, guarded by the lock of the pool
  std::condition_variable done{};  // active is 0
  std::atomic<bool> failed{false};
  std::exception_ptr exception{};  // written once, by the thread that has set `failed`

  // Works until no range is left.
  void Take() noexcept {
    for (int64_t i = next.fetch_add(1); i < ranges; i = next.fetch_add(1)) {
      try {
        if (!failed.load()) body(total * i / ranges, total * (i + 1) / ranges);
      } catch (...) {
        if (!failed.exchange(true)) exception = std::current_exception();
      }
    }
  }
};

class ThreadPool::Workers {
 public:
  explicit Workers(int wanted) {
    jobs_.reserve(64);  // before there are threads, which read it
    try {
      for (int i = 1; i < wanted; ++i) threads_.emplace_back([this] { Work(); });
    } catch (const std::exception&) {
      // The threads that there are do the work.
    }
  }

  ~Workers() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      ends_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const { return static_cast<int>(threads_.size()); }

  void Run(Job* job) {
    const int helpers = job->helpers;  // read before the other threads know the job
    {
      std::lock_guard<std::mutex> lock(mu_);
      jobs_.push_back(job);
    }
    for (int i = helpers; i > 0; --i) wake_.notify_one();
    job->Take();
    std::unique_lock<std::mutex> lock(mu_);
    const auto found = std::find(jobs_.begin(), jobs_.end(), job);
    if (found != jobs_.end()) jobs_.erase(found);
    job->done.wait(lock, [job] { return job->active == 0; });
  }

 private:
  void Work() {
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

  std::mutex mu_;
  std::condition_variable wake_;  // there is a job, or the end
  std::vector<Job*> jobs_;        // that may have ranges left
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

ThreadPool::ThreadPool(int num_threads) : wanted_(num_threads) { workers(); }

ThreadPool::~ThreadPool() = default;

ThreadPool::Workers& ThreadPool::workers() const {
  return workers_.Get([this] { return std::make_unique<Workers>(wanted_); });
}

int ThreadPool::num_threads() const { return workers().size() + 1; }

void ThreadPool::Run(int64_t total, int64_t cost_per_unit, int max_threads,
                     const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kMinNanoseconds = 50'000;
  constexpr int64_t kRangesPerThread = 4;  // so that a late thread finds less work
  if (total <= 0) return;
  const int64_t cost = std::max<int64_t>(1, cost_per_unit);
  const int64_t per_range = std::max<int64_t>(1, kMinNanoseconds / cost);
  const int64_t useful = (total + per_range - 1) / per_range;
  Workers& own = workers();
  const int64_t threads = std::min<int64_t>({own.size() + 1, max_threads, useful});
  if (threads <= 1) {
    body(0, total);
    return;
  }
  Job job{total, std::min(useful, threads * kRangesPerThread), body, static_cast<int>(threads) - 1};
  own.Run(&job);
  if (job.exception) std::rethrow_exception(std::exchange(job.exception, nullptr));
}

}  // namespace twml::serving
