#include "cc/core/scratch.h"

#include "cc/core/fork.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace twml {
namespace {

constexpr int kMinBits = 12, kMaxBits = 62;

// Block sizes are powers of two, so that a block fits the next call of a similar size.
int SizeClass(int64_t bytes) {
  int bits = kMinBits;
  while (bits < kMaxBits && (int64_t{1} << bits) < bytes) ++bits;
  return bits;
}

struct Pool {
  std::mutex mu;
  std::vector<void*> free[kMaxBits + 1];
  int64_t pooled_bytes = 0;
};

// Never destroyed, because a thread may still release a block while the process exits.
Pool& GlobalPool() {
  static auto* const pool = new PerProcess<Pool>;
  return pool->Get();
}

}  // namespace

void* AcquireScratch(int64_t bytes) {
  const int size_class = SizeClass(bytes);
  const int64_t size = int64_t{1} << size_class;
  Pool& pool = GlobalPool();
  {
    std::lock_guard<std::mutex> lock(pool.mu);
    auto& free = pool.free[size_class];
    if (!free.empty()) {
      void* block = free.back();
      free.pop_back();
      pool.pooled_bytes -= size;
      return block;
    }
  }
  // Sorting scatters entries over many pages, and huge pages avoid most of the TLB misses.
  constexpr int64_t kLine = 64, kHugePage = int64_t{2} << 20;
  const int64_t alignment = size < kHugePage ? kLine : kHugePage;
  void* block = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(size));
  if (block == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePage) madvise(block, static_cast<size_t>(size), MADV_HUGEPAGE);
#endif
  return block;
}

void ReleaseScratch(void* block, int64_t bytes) {
  const int size_class = SizeClass(bytes);
  const int64_t size = int64_t{1} << size_class;
  Pool& pool = GlobalPool();
  {
    std::lock_guard<std::mutex> lock(pool.mu);
    if (pool.pooled_bytes + size <= kMaxPooledScratchBytes) {
      try {
        pool.free[size_class].push_back(block);
        pool.pooled_bytes += size;
        return;
      } catch (
          const std::bad_alloc&) {  // destructors call this function, so the block is freed instead
      }
    }
  }
  std::free(block);
}

}  // namespace twml
