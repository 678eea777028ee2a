#include "cc/core/simd.h"

#include <cstdlib>
#include <string>

namespace twml {
namespace baseline {
extern const RowKernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const RowKernels kKernels;
}
namespace avx512 {
extern const RowKernels kKernels;
}
#endif

namespace {

const RowKernels& Choose() {
  const char* asked = std::getenv("TWML_OPS_SIMD");
  const std::string limit = asked == nullptr ? "" : asked;
#if defined(__x86_64__)
  if (limit.empty() || limit == "avx512") {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return avx512::kKernels;
    }
  }
  if (limit != "baseline" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return avx2::kKernels;
  }
#endif
  return baseline::kKernels;
}

}  // namespace

const RowKernels& Kernels() {
  static const RowKernels& kernels = Choose();
  return kernels;
}

}  // namespace twml
