#include "cc/core/huge_pages.h"

#if defined(__linux__)
#include <sys/mman.h>

#include <cerrno>
#endif

namespace twml {

void HugePages::Advise(const void* data, int64_t bytes) {
  constexpr int64_t kMinBytes = int64_t{16} << 20;
  if (bytes < kMinBytes || advised_.load(std::memory_order_relaxed) == data) return;
  advised_.store(data, std::memory_order_relaxed);
#if defined(__linux__)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1; older kernels return an error
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePage - 1);
  if (begin >= end || madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) != 0) {
    return;
  }
  // Collapse in parts and retry each: the kernel gives up on a whole range at the first page that
  // is being migrated.
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
