// The core does not create threads. Every parallel core function takes a ParallelFor.
#ifndef TWML_CORE_PARALLEL_H_
#define TWML_CORE_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace twml {

// Calls body(begin, end) on disjoint ranges that cover [0, total), on any threads, and returns when
// all calls are done. cost_per_unit is the approximate time of one unit in nanoseconds; it lets an
// implementation keep small work on the calling thread. The way in which [0, total) is divided must
// never change a result.
using ParallelFor =
    std::function<void(int64_t total, int64_t cost_per_unit,
                       const std::function<void(int64_t begin, int64_t end)>& body)>;

// A ParallelFor that runs everything on the calling thread.
inline void Serial(int64_t total, int64_t /*cost_per_unit*/,
                   const std::function<void(int64_t, int64_t)>& body) {
  if (total > 0) body(0, total);
}

}  // namespace twml

#endif  // TWML_CORE_PARALLEL_H_
