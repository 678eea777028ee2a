// Kernels with and without mistakes, which cuda_on_cpu.h has to tell apart.
//
//   emulation NAME SEED
#include <string>

#include "tests/cuda/cuda_on_cpu.h"

namespace {

constexpr int kThreads = 64;
constexpr unsigned kAll = ~0u;

// Each thread adds what its neighbor of the other warp has written.
template <bool kBarrier>
__global__ void AddNeighbors(const int* in, int* out) {
  __shared__ int shared[kThreads];
  const unsigned i = threadIdx.x;
  shared[i] = 0;
  if (kBarrier) __syncthreads();
  shared[i] = in[i];
  if (kBarrier) __syncthreads();
  out[i] = shared[i] + shared[(i + 32) % kThreads];
  if (kBarrier) __syncthreads();
}

__global__ void SumOfWarp(const int* in, int* out) {
  int sum = in[threadIdx.x];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_sync(kAll, sum, (threadIdx.x % 32) ^ by);
  out[threadIdx.x] = sum;
}

__global__ void ReturnBeforeBarrier(const int*, int*) {
  if (threadIdx.x == 3) return;
  __syncthreads();
}

__global__ void ReturnBeforeShuffle(const int*, int* out) {
  if (threadIdx.x == 3) return;
  out[threadIdx.x] = __shfl_sync(kAll, 1, 0);
}

__global__ void OutsideOfOwnMask(const int*, int* out) {
  out[threadIdx.x] = __shfl_sync(0xffffu, 1, 0);
}

__global__ void ReadOutsideOfMask(const int*, int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

__global__ void DifferentMasks(const int*, int* out) {
  out[threadIdx.x] = __shfl_sync(threadIdx.x % 32 == 0 ? kAll : kAll & ~1u, 1, 5);
}

__global__ void BarrierAndShuffle(const int*, int* out) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    out[threadIdx.x] = __shfl_sync(kAll, 1, 0);
  }
}

}  // namespace

int main(int, char** arguments) {
  const std::string name = arguments[1];
  cuda_on_cpu_seed(static_cast<unsigned>(std::atoi(arguments[2])));
  int in[kThreads], out[kThreads] = {};
  for (int i = 0; i < kThreads; ++i) in[i] = i * i + 1;
  const auto run = [&](const char* kernel, void (*function)(const int*, int*)) {
    if (name == kernel) cuda_on_cpu::Launch(kernel, function, 1, kThreads, in, out);
  };
  run("barrier", AddNeighbors<true>);
  run("no_barrier", AddNeighbors<false>);
  run("sum_of_warp", SumOfWarp);
  run("return_before_barrier", ReturnBeforeBarrier);
  run("return_before_shuffle", ReturnBeforeShuffle);
  run("outside_of_own_mask", OutsideOfOwnMask);
  run("read_outside_of_mask", ReadOutsideOfMask);
  run("different_masks", DifferentMasks);
  run("barrier_and_shuffle", BarrierAndShuffle);
  for (const int o : out) std::printf("%d ", o);
  return 0;
}
