// A loop divided into blocks that several threads take one after the other.
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

// A thread that finds all blocks taken returns without using the body. The calling thread therefore
// waits only for blocks that have begun, and never for a thread to start.
class BlockQueue {
 public:
  BlockQueue(int64_t total, int64_t blocks) : total_(total), blocks_(blocks), unfinished_(blocks) {}

  // Runs blocks until all are taken. After a block has thrown, the remaining blocks are skipped.
  void RunBlocks(const std::function<void(int64_t, int64_t)>& body) noexcept {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < blocks_;) {
      try {
        if (!failed_.load(std::memory_order_relaxed)) body(Begin(i), Begin(i + 1));
      } catch (...) {
        if (!failed_.exchange(true, std::memory_order_relaxed))
          exception_ = std::current_exception();
      }
      unfinished_.fetch_sub(1, std::memory_order_release);
    }
  }

  // Waits for the blocks that have begun, then rethrows the first exception of a block. Call it
  // once, after RunBlocks, on the thread that owns the body.
  void Wait() {
    // Blocks are short, so sleeping would cost more than spinning.
    for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spins) {
      if (spins > kMaxSpins) std::this_thread::yield();
    }
    if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
  }

 private:
  static constexpr int kMaxSpins = 1000;
  int64_t Begin(int64_t block) const {
    return total_ / blocks_ * block + std::min(block, total_ % blocks_);
  }

  const int64_t total_, blocks_;
  std::atomic<int64_t> next_{0}, unfinished_;
  std::atomic<bool> failed_{false};
  std::exception_ptr exception_;  // written by one thread before its block counts as finished
};

}  // namespace twml

#endif  // TWML_CORE_BLOCK_QUEUE_H_
