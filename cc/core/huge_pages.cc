#include "cc/core/huge_pages.h"

#if defined(__linux__)
#include <sys/mman.h>

#include <cerrno>
#endif

namespace twml {

void HugePages::Advise(const void* data, int64_t bytes) {
  constexpr int64_t kWorthIt = int64_t{16} << 20;
  if (bytes < kWorthIt || advised_.load(std::memory_order_relaxed) == data) return;
  advised_.store(data, std::memory_order_relaxed);
#if defined(__linux__)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1; older kernels refuse it and wait
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePage - 1);
  if (begin >= end || madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) != 0) {
    return;
  }
  // In parts, each tried again: the kernel gives a whole range up at the first page that somebody
  // happens to be moving.
  constexpr uintptr_t kPart = 16 * kHugePage;
  constexpr int kTries = 3;
  for (uintptr_t at = begin; at < end; at += kPart) {
    void* const part = reinterpret_cast<void*>(at);
    const uintptr_t size = end - at < kPart ? end - at : kPart;
    for (int tries = 0; tries < kTries && madvise(part, size, kCollapse) != 0; ++tries) {
      if (errno != EAGAIN) return;
    }
  }
#endif
}

}  // namespace twml
