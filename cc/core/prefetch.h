// Prefetching of table rows.
#ifndef TWML_CORE_PREFETCH_H_
#define TWML_CORE_PREFETCH_H_

#include <cstdint>

namespace twml {

// Prefetches the cache lines of a row, which may begin within a line. The function is always
// inlined because GCC otherwise drops calls of a function that only prefetches, as one without
// effects.
template <class W>
__attribute__((always_inline)) inline void PrefetchRow(const W* row, int64_t dim) {
  constexpr uintptr_t kLine = 64;
  const auto begin = reinterpret_cast<uintptr_t>(row), end = begin + dim * sizeof(W);
  for (uintptr_t at = begin & ~(kLine - 1); at < end; at += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(at));
  }
}

}  // namespace twml

#endif  // TWML_CORE_PREFETCH_H_
