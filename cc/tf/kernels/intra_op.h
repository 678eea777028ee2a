// TensorFlow's intra-op pool as a ParallelFor.
#ifndef TWML_TF_KERNELS_INTRA_OP_H_
#define TWML_TF_KERNELS_INTRA_OP_H_

#include <algorithm>
#include <exception>
#include <memory>

#include "cc/core/block_queue.h"
#include "cc/core/parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/threadpool.h"

namespace twml {

// The calling thread takes part and counts as one of the pool's threads. Otherwise a pool of two
// threads would run three threads on two cores, and the last one would have to wait for a core.
// `Denormals` sets the same handling of denormals on every thread: TensorFlow's own threads flush
// them to zero and others do not. An exception of a body is rethrown on the calling thread once no
// thread uses the body any more.
template <class Denormals>
ParallelFor MakeIntraOp(tensorflow::OpKernelContext* ctx) {
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
    try {
      for (int64_t t = 1; t < threads; ++t) {
        pool->Schedule([queue, &body] {
          const Denormals denormals;
          queue->RunBlocks(body);
        });
      }
    } catch (const std::exception&) {
      // There is no memory to schedule another thread. The threads scheduled so far run all blocks.
    }
    queue->RunBlocks(body);
    queue->Wait();
  };
}

inline ParallelFor IntraOp(tensorflow::OpKernelContext* ctx) {
  return MakeIntraOp<tensorflow::port::ScopedFlushDenormal>(ctx);
}

// For kernels whose results depend on denormals, for which 0 < 1e-40 must hold.
inline ParallelFor IntraOpWithDenormals(tensorflow::OpKernelContext* ctx) {
  return MakeIntraOp<tensorflow::port::ScopedDontFlushDenormal>(ctx);
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_INTRA_OP_H_
