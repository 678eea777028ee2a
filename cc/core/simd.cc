#include "cc/core/simd.h"

#include <cstdlib>
#include <string>

#include "cc/core/simd_buckets.h"
#include "cc/core/simd_groups.h"

namespace twml {
namespace baseline {
extern const RowKernels kKernels;
extern const BucketKernels kBucketKernels;
extern const GroupKernels kGroupKernels;
}  // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
extern const RowKernels kKernels;
extern const BucketKernels kBucketKernels;
extern const GroupKernels kGroupKernels;
}  // namespace avx2
namespace avx512 {
extern const RowKernels kKernels;
extern const BucketKernels kBucketKernels;
extern const GroupKernels kGroupKernels;
}  // namespace avx512
#endif

namespace {

struct Level {
  const RowKernels& rows;
  const BucketKernels& buckets;
  const GroupKernels& groups;
};

Level Choose() {
  const char* asked = std::getenv("TWML_OPS_SIMD");
  const std::string limit = asked == nullptr ? "" : asked;
#if defined(__x86_64__)
  if (limit.empty() || limit == "avx512") {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return {avx512::kKernels, avx512::kBucketKernels, avx512::kGroupKernels};
    }
  }
  if (limit != "baseline" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {avx2::kKernels, avx2::kBucketKernels, avx2::kGroupKernels};
  }
#endif
  return {baseline::kKernels, baseline::kBucketKernels, baseline::kGroupKernels};
}

const Level& Chosen() {
  static const Level level = Choose();
  return level;
}

}  // namespace

const RowKernels& Kernels() { return Chosen().rows; }
const BucketKernels& KernelsOfBuckets() { return Chosen().buckets; }
const GroupKernels& KernelsOfGroups() { return Chosen().groups; }

}  // namespace twml
