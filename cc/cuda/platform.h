// CUDA, or what stands in for it in tests. One source: clang or nvcc compile the kernels for GPUs,
// and a C++ compiler compiles them with TWML_CUDA_EMULATION, a header that runs the threads of a
// kernel one by one on the CPU. The kernels use only what both provide.
#ifndef TWML_CUDA_PLATFORM_H_
#define TWML_CUDA_PLATFORM_H_

#include <cstddef>
#include <cstdint>

#if defined(TWML_CUDA_EMULATION)
#include TWML_CUDA_EMULATION
#else
#include <cuda_runtime.h>
#define TWML_QUEUE_KERNEL(kernel, grid, threads, stream, ...) \
  kernel<<<grid, threads, 0, stream>>>(__VA_ARGS__)
#endif

namespace twml::cuda {

constexpr int kWarp = 32;
constexpr unsigned kFullMask = 0xffffffffu;
constexpr int kThreads = 128;  // of the blocks of all kernels
constexpr int kMaxBlocks = 1 << 16;

// The number of blocks for `n` threads. Kernels loop, so fewer blocks than needed are correct.
inline unsigned BlocksFor(int64_t n, int64_t per_block = kThreads) {
  const int64_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

// The number of this thread among the threads of all blocks, and how many there are.
__device__ inline int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t NumThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace twml::cuda

#endif  // TWML_CUDA_PLATFORM_H_
