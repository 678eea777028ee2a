#include "cc/core/scratch.h"

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

// Blocks are powers of two, so that one fits the next call of about the same size.
int SizeClass(int64_t bytes) {
  int bits = kMinBits;
  while (bits < kMaxBits && (int64_t{1} << bits) < bytes) ++bits;
  return bits;
}

struct Pool {
  std::mutex mu;
  std::vector<void*> free[kMaxBits + 1];
  int64_t kept = 0;
};

// Never destroyed: a thread may still give a block back while the process ends.
Pool& GlobalPool() {
  static Pool* pool = new Pool;
  return *pool;
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
      pool.kept -= size;
      return block;
    }
  }
  // Entries are sorted here, each to a page of its own: huge pages spare most of the lookups.
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
    if (pool.kept + size <= kMaxPooledScratchBytes) {
      try {
        pool.free[size_class].push_back(block);
        pool.kept += size;
        return;
      } catch (const std::bad_alloc&) {  // called by destructors: the block is not kept
      }
    }
  }
  std::free(block);
}

}  // namespace twml
