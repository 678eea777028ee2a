#include "cc/core/huge_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace twml {

void HugePages::Ask(const void* data, int64_t bytes) {
  constexpr int64_t kWorthIt = int64_t{16} << 20;
  if (bytes < kWorthIt || asked_.load(std::memory_order_relaxed) == data) return;
  asked_.store(data, std::memory_order_relaxed);
#if defined(__linux__)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1; older kernels refuse it and wait
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePage - 1);
  void* const range = reinterpret_cast<void*>(begin);
  if (madvise(range, end - begin, MADV_HUGEPAGE) == 0) {
    (void)madvise(range, end - begin, kCollapse);
  }
#endif
}

}  // namespace twml
