// One loop cut into blocks, which several threads take one by one.
#ifndef TWML_CORE_BLOCK_QUEUE_H_
#define TWML_CORE_BLOCK_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

namespace twml {

// A thread that finds all blocks taken leaves without touching the body. So the calling thread
// waits for blocks that were begun, never for a thread to start.
class BlockQueue {
 public:
  BlockQueue(int64_t total, int64_t blocks) : total_(total), blocks_(blocks), left_(blocks) {}

  // Runs blocks until all are taken. Blocks that begin after one has thrown are skipped.
  void RunBlocks(const std::function<void(int64_t, int64_t)>& body) noexcept {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < blocks_;) {
      try {
        if (!failed_.load(std::memory_order_relaxed)) body(Begin(i), Begin(i + 1));
      } catch (...) {
        if (!failed_.exchange(true, std::memory_order_relaxed)) thrown_ = std::current_exception();
      }
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  // Waits for the blocks that were begun, then throws what the first one that failed has thrown. To
  // be called once, by the thread that owns the body, after Work.
  void Wait() {
    // Blocks are short: to sleep would cost more than to look again.
    for (int spins = 0; left_.load(std::memory_order_acquire) > 0; ++spins) {
      if (spins > kSpins) std::this_thread::yield();
    }
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

 private:
  static constexpr int kSpins = 1000;
  int64_t Begin(int64_t block) const {
    return total_ / blocks_ * block + std::min(block, total_ % blocks_);
  }

  const int64_t total_, blocks_;
  std::atomic<int64_t> next_{0}, left_;
  std::atomic<bool> failed_{false};
  std::exception_ptr thrown_;  // written by one thread before its block counts as done
};

}  // namespace twml

#endif  // TWML_CORE_BLOCK_QUEUE_H_
