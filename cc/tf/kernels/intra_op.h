// TensorFlow's intra-op pool as a ParallelFor.
#ifndef TWML_TF_KERNELS_INTRA_OP_H_
#define TWML_TF_KERNELS_INTRA_OP_H_

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "cc/core/parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/threadpool.h"

namespace twml {

// Blocks of one loop, taken by whoever is free. Threads that come when all are taken leave without
// touching the body, so the caller waits for blocks that were begun, never for a thread to wake up.
class BlockQueue {
 public:
  BlockQueue(int64_t total, int64_t blocks) : total_(total), blocks_(blocks), left_(blocks) {}

  void Work(const std::function<void(int64_t, int64_t)>& body) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < blocks_;) {
      body(Begin(i), Begin(i + 1));
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  void Wait() const {
    // Blocks are short: to sleep would cost more than to look again.
    for (int looked = 0; left_.load(std::memory_order_acquire) > 0; ++looked) {
      if (looked > kLooks) std::this_thread::yield();
    }
  }

 private:
  static constexpr int kLooks = 1000;
  int64_t Begin(int64_t block) const {
    return total_ / blocks_ * block + std::min(block, total_ % blocks_);
  }

  const int64_t total_, blocks_;
  std::atomic<int64_t> next_{0}, left_;
};

// The calling thread works too and counts as one of the pool's: a pool of two threads would
// otherwise put three on two cores, and the last to finish would wait for a core. Every thread
// treats denormals alike: TensorFlow's own take them for zeros, others do not.
template <class Denormals>
ParallelFor IntraOpWith(tensorflow::OpKernelContext* ctx) {
  auto* pool = ctx->device()->tensorflow_cpu_worker_threads()->workers;
  return [pool](int64_t total, int64_t cost_per_unit,
                const std::function<void(int64_t, int64_t)>& body) {
    constexpr double kNsPerThread = 2e4, kNsPerBlock = 1e4;
    constexpr int64_t kBlocksPerThread = 8;
    if (total <= 0) return;
    const double ns = static_cast<double>(total) * static_cast<double>(cost_per_unit);
    const int64_t threads = std::min({static_cast<int64_t>(pool->NumThreads()), total,
                                      static_cast<int64_t>(std::min(ns / kNsPerThread, 1e6))});
    const Denormals denormals;
    if (threads <= 1) return body(0, total);
    const int64_t most = std::min(total, threads * kBlocksPerThread);
    const int64_t blocks =
        std::clamp(static_cast<int64_t>(std::min(ns / kNsPerBlock, 1e6)), threads, most);
    auto queue = std::make_shared<BlockQueue>(total, blocks);
    for (int64_t t = 1; t < threads; ++t) {
      pool->Schedule([queue, &body] {
        const Denormals denormals;
        queue->Work(body);
      });
    }
    queue->Work(body);
    queue->Wait();
  };
}

inline ParallelFor IntraOp(tensorflow::OpKernelContext* ctx) {
  return IntraOpWith<tensorflow::port::ScopedFlushDenormal>(ctx);
}

// For kernels whose result a denormal can change: 0 < 1e-40 must hold.
inline ParallelFor IeeeIntraOp(tensorflow::OpKernelContext* ctx) {
  return IntraOpWith<tensorflow::port::ScopedDontFlushDenormal>(ctx);
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_INTRA_OP_H_
