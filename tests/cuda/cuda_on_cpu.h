// Runs CUDA kernels on the CPU, for tests of their results.
//
// A CUDA thread is a fiber. The fibers of a block run one at a time on the calling thread, and the
// blocks of a launch one after the other. The order of blocks, and the order of fibers in each
// round, are drawn at random, so a missing synchronization makes the result depend on the seed.
//
// What is undefined in CUDA ends the process with a message: a mask that names a lane that has
// returned or does not name the calling lane, a shuffle from a lane outside of its mask, a thread
// that returns while others wait in __syncthreads, and threads that wait forever. The kernels can
// be compiled with -fsanitize=address,undefined.
//
// Work on a stream is done at once, or, after cuda_on_cpu_defer(1), when something waits for it, so
// a host that reads a result too early gets a wrong one. Then the streams go on in an order that is
// drawn at random, so work on the wrong stream is done too early or too late. cuda_on_cpu_fail(n)
// makes the call after n others fail.
//
// Not simulated: concurrent blocks, the weak memory model, limits of registers and shared memory.
// Shared memory keeps its content from block to block.
#ifndef TESTS_CUDA_CUDA_ON_CPU_H_
#define TESTS_CUDA_CUDA_ON_CPU_H_

#include <malloc.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __launch_bounds__(...)

using cudaStream_t = void*;
using cudaError_t = int;
constexpr int cudaSuccess = 0;
constexpr int cudaErrorMemoryAllocation = 2;
constexpr int cudaErrorUnknown = 999;
constexpr int cudaMemcpyDefault = 4;

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace cuda_on_cpu {

constexpr int kLanes = 32;
constexpr int kMaxThreads = 1024;
constexpr size_t kStackBytes = 64 << 10;

// The lanes that have arrived at a shuffle, a vote or __syncwarp with the same mask.
struct Meeting {
  uint32_t arrived = 0;
  unsigned round = 0;
  uint64_t given[kLanes], taken[kLanes];
};

struct Warp {
  uint32_t returned = 0;  // lanes
  std::map<uint32_t, Meeting> meetings;
};

// A stack on which the threads of many blocks run, one after the other.
struct Fiber {
  ucontext_t start;
  jmp_buf at;
  bool started = false, done = true;
  dim3 thread_idx;
  int lane = 0;
  Warp* warp = nullptr;
  char* stack = nullptr;
};

struct Block {
  const char* kernel = "";
  std::function<void()> body;
  dim3 grid_dim, block_dim, block_idx;
  int num_threads = 0, alive = 0, in_barrier = 0;
  unsigned barrier_round = 0;
  uint64_t progress = 0;
  std::vector<Warp> warps;
};

// The state of an OS thread that launches kernels.
struct Machine {
  Block block;
  std::unique_ptr<Fiber[]> fibers{new Fiber[kMaxThreads]};
  Fiber* running = nullptr;
  jmp_buf scheduler;
  std::mt19937 random;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_bytes = 0;
#endif

  Machine() {
    const size_t bytes = kStackBytes * kMaxThreads;
    void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) std::abort();
    for (int i = 0; i < kMaxThreads; ++i) {
      fibers[i].stack = static_cast<char*>(stacks) + i * kStackBytes;
    }
  }
  ~Machine() { munmap(fibers[0].stack, kStackBytes * kMaxThreads); }
};

inline thread_local Machine machine;
inline unsigned seed = 1;  // of the order of blocks and threads

[[noreturn]] inline void Fail(const char* what) {
  const Block& b = machine.block;
  std::fprintf(stderr, "cuda_on_cpu: %s: %s (block %u,%u thread %u)\n", b.kernel, what,
               b.block_idx.x, b.block_idx.y, machine.running ? machine.running->thread_idx.x : 0);
  std::abort();
}

// Lets the scheduler go on. Returns when it resumes this fiber.
inline void Yield() {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, machine.scheduler_stack, machine.scheduler_bytes);
#endif
  if (_setjmp(machine.running->at) == 0) _longjmp(machine.scheduler, 1);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, &machine.scheduler_stack, &machine.scheduler_bytes);
#endif
}

// Runs threads of kernels forever, one after the other.
inline void RunThreads() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &machine.scheduler_stack, &machine.scheduler_bytes);
#endif
  for (;;) {
    Block& block = machine.block;
    block.body();
    Fiber& fiber = *machine.running;
    fiber.done = true;
    fiber.warp->returned |= 1u << fiber.lane;
    --block.alive;
    ++block.progress;
    if (block.in_barrier > 0) Fail("a thread returned while others wait in __syncthreads");
    Yield();
  }
}

inline void Resume(Fiber* fiber) {
  machine.running = fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&machine.fake_stack, fiber->stack, kStackBytes);
#endif
  if (_setjmp(machine.scheduler) == 0) {
    if (fiber->started) _longjmp(fiber->at, 1);
    fiber->started = true;
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = fiber->stack;
    fiber->start.uc_stack.ss_size = kStackBytes;
    fiber->start.uc_link = nullptr;
    makecontext(&fiber->start, RunThreads, 0);
    setcontext(&fiber->start);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(machine.fake_stack, nullptr, nullptr);
#endif
  machine.running = nullptr;
}

inline void SyncThreads() {
  Block& block = machine.block;
  if (block.alive != block.num_threads) Fail("__syncthreads after a thread has returned");
  const unsigned round = block.barrier_round;
  ++block.progress;
  if (++block.in_barrier == block.alive) {
    block.in_barrier = 0;
    ++block.barrier_round;
    return;
  }
  while (block.barrier_round == round) Yield();
}

// Waits for all lanes of `mask` and returns what they gave.
inline const uint64_t* Meet(uint32_t mask, uint64_t mine) {
  const Fiber& fiber = *machine.running;
  Warp& warp = *fiber.warp;
  const uint32_t own = 1u << fiber.lane;
  if ((mask & own) == 0) Fail("a lane is not in its own mask");
  if ((mask & warp.returned) != 0) Fail("a mask names a lane that has returned");
  Meeting& meeting = warp.meetings[mask];
  const unsigned round = meeting.round;
  meeting.given[fiber.lane] = mine;
  meeting.arrived |= own;
  ++machine.block.progress;
  if (meeting.arrived == mask) {
    std::copy(meeting.given, meeting.given + kLanes, meeting.taken);
    meeting.arrived = 0;
    ++meeting.round;
  } else {
    while (meeting.round == round) {
      if ((mask & warp.returned) != 0) Fail("a mask names a lane that has returned");
      Yield();
    }
  }
  return meeting.taken;
}

template <class T>
T Shuffle(uint32_t mask, T value, int source) {
  static_assert(sizeof(T) <= 8);
  if (((mask >> source) & 1) == 0) Fail("a shuffle reads a lane outside of its mask");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = Meet(mask, bits)[source];
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline void RunBlock(dim3 block_idx) {
  Block& block = machine.block;
  const int n = block.num_threads;
  block.block_idx = block_idx;
  block.alive = n;
  block.in_barrier = 0;
  block.warps.assign((n + kLanes - 1) / kLanes, Warp());
  std::vector<int> order(n);
  for (int i = 0; i < n; ++i) {
    Fiber& fiber = machine.fibers[i];
    fiber.done = false;
    fiber.thread_idx = dim3(i % block.block_dim.x, i / block.block_dim.x);
    fiber.lane = i % kLanes;
    fiber.warp = &block.warps[i / kLanes];
    order[i] = i;
  }
  while (block.alive > 0) {
    std::shuffle(order.begin(), order.end(), machine.random);
    const uint64_t before = block.progress;
    for (const int i : order) {
      if (!machine.fibers[i].done) Resume(&machine.fibers[i]);
    }
    if (block.progress == before) Fail("all threads wait forever");
  }
}

// What a program has queued on each stream, and how many of its calls succeed from now on.
inline std::map<void*, std::deque<std::function<void()>>> queues;
inline std::mt19937 choice;  // of the stream that goes on
inline bool deferred = false;
inline int64_t calls_until_failure = -1;
inline thread_local int last_error = cudaSuccess;
inline int64_t capacity = INT64_MAX;  // bytes of the device
inline std::atomic<int64_t> allocated{0};

// Whether this call of CUDA is the one to fail.
inline bool FailsNow() {
  if (calls_until_failure < 0 || calls_until_failure-- > 0) return false;
  last_error = cudaErrorUnknown;
  return true;
}

template <class Work>
int Enqueue(void* stream, Work work) {
  if (FailsNow()) return cudaErrorUnknown;
  if (deferred) {
    queues[stream].push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

inline void RunFirst(void* stream) {
  auto& queue = queues[stream];
  const auto work = std::move(queue.front());
  queue.pop_front();
  if (queue.empty()) queues.erase(stream);
  work();
}

// Does work of any stream until all work of this one is done. No stream waits for another, as those
// of TensorFlow.
inline void Synchronize(void* stream) {
  while (queues.count(stream) != 0) {
    RunFirst(std::next(queues.begin(), choice() % queues.size())->first);
  }
}

inline void SynchronizeAll() {
  while (!queues.empty()) Synchronize(queues.begin()->first);
}

template <class... P, class... A>
void Launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 threads, A... args) {
  Block& block = machine.block;
  block = Block();
  block.kernel = name;
  block.grid_dim = grid;
  block.block_dim = threads;
  block.num_threads = static_cast<int>(threads.x * threads.y);
  block.body = [&] { kernel(args...); };
  if (block.num_threads < 1 || block.num_threads > kMaxThreads) Fail("wrong size of a block");
  machine.random.seed(seed);
  std::vector<unsigned> order(grid.x * grid.y);
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), machine.random);
  for (const unsigned i : order) RunBlock(dim3(i % grid.x, i / grid.x));
}

template <class... P, class... A>
void Queue(const char* name, void (*kernel)(P...), dim3 grid, dim3 threads, void* stream,
           A... args) {
  Enqueue(stream, [=] { Launch(name, kernel, grid, threads, args...); });
}

}  // namespace cuda_on_cpu

#define TWML_QUEUE_KERNEL(kernel, grid, threads, stream, ...) \
  cuda_on_cpu::Queue(#kernel, kernel, grid, threads, stream, __VA_ARGS__)
#define TWML_EMULATION_QUEUE(stream, ...) cuda_on_cpu::Enqueue(stream, __VA_ARGS__)

#define threadIdx (cuda_on_cpu::machine.running->thread_idx)
#define blockIdx (cuda_on_cpu::machine.block.block_idx)
#define blockDim (cuda_on_cpu::machine.block.block_dim)
#define gridDim (cuda_on_cpu::machine.block.grid_dim)

inline void __syncthreads() { cuda_on_cpu::SyncThreads(); }
inline void __threadfence() {}  // threads run one at a time
inline void __syncwarp(uint32_t mask = ~0u) { cuda_on_cpu::Meet(mask, 0); }
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
  const int lane = cuda_on_cpu::machine.running->lane;
  return cuda_on_cpu::Shuffle(mask, value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <class T>
T atomicAdd(T* p, T v) {
  const T old = *p;
  *p = old + v;
  return old;
}
template <class T>
T atomicMin(T* p, T v) {
  const T old = *p;
  *p = std::min(old, v);
  return old;
}
template <class T>
T atomicMax(T* p, T v) {
  const T old = *p;
  *p = std::max(old, v);
  return old;
}

inline int cudaGetLastError() { return std::exchange(cuda_on_cpu::last_error, cudaSuccess); }
inline int cudaMemsetAsync(void* p, int byte, size_t bytes, cudaStream_t stream) {
  return cuda_on_cpu::Enqueue(stream, [=] { std::memset(p, byte, bytes); });
}
inline int cudaStreamSynchronize(cudaStream_t stream) {
  if (cuda_on_cpu::FailsNow()) return cudaErrorUnknown;
  cuda_on_cpu::Synchronize(stream);
  return cudaSuccess;
}
inline int cudaMalloc(void** p, size_t bytes) {
  const auto left = static_cast<uint64_t>(cuda_on_cpu::capacity - cuda_on_cpu::allocated);
  *p = bytes > left ? nullptr : std::malloc(bytes);
  if (*p == nullptr) return cuda_on_cpu::last_error = cudaErrorMemoryAllocation;
  cuda_on_cpu::allocated += static_cast<int64_t>(malloc_usable_size(*p));
  return cudaSuccess;
}
inline int cudaFree(void* p) {
  cuda_on_cpu::SynchronizeAll();
  cuda_on_cpu::allocated -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
  return cudaSuccess;
}
inline int cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  cuda_on_cpu::Synchronize(nullptr);
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t stream) {
  return cuda_on_cpu::Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
inline int cudaMallocHost(void** p, size_t bytes) {
  if (cuda_on_cpu::FailsNow()) return cudaErrorUnknown;
  return cudaMalloc(p, bytes);
}
inline int cudaFreeHost(void* p) { return cudaFree(p); }
inline int cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

#define CUDA_ON_CPU_API extern "C" __attribute__((visibility("default"), weak))

// Chooses the order of blocks and threads.
CUDA_ON_CPU_API void cuda_on_cpu_seed(unsigned seed) {
  cuda_on_cpu::seed = seed;
  cuda_on_cpu::choice.seed(seed);
}

// Chooses when the work of streams is done. Not for programs with several threads.
CUDA_ON_CPU_API void cuda_on_cpu_defer(int deferred) {
  cuda_on_cpu::SynchronizeAll();
  cuda_on_cpu::deferred = deferred != 0;
}

// Limits the memory of the device to that in use and `bytes`; without a limit if that is negative.
CUDA_ON_CPU_API void cuda_on_cpu_capacity(int64_t bytes) {
  cuda_on_cpu::capacity = bytes < 0 ? INT64_MAX : cuda_on_cpu::allocated + bytes;
}

// Makes a call of CUDA fail, after `calls` that do not; never if that is negative. Returns how many
// were left from the last time.
CUDA_ON_CPU_API int64_t cuda_on_cpu_fail(int64_t calls) {
  return std::exchange(cuda_on_cpu::calls_until_failure, calls);
}

#endif  // TESTS_CUDA_CUDA_ON_CPU_H_
