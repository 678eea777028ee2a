#include "cc/core/simd/row_kernels.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cc/core/simd/bucket_kernels.h"
#include "cc/core/simd/group_kernels.h"

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

constexpr int kNumLevels = std::size(kSimdLevels);

// The highest level of this CPU, an index into kSimdLevels.
int Highest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return 2;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

// The level that the environment variable names: an index into kSimdLevels, kNumLevels if it is not
// set, or -1 if its value is no level.
int Requested() {
  const char* asked = std::getenv(kSimdVariable);
  if (asked == nullptr || *asked == '\0') return kNumLevels;
  for (int i = 0; i < kNumLevels; ++i) {
    if (std::strcmp(asked, kSimdLevels[i]) == 0) return i;
  }
  return -1;
}

Level Choose() {
  const int requested = Requested();
  const int level = requested < 0 ? Highest() : std::min(requested, Highest());
#if defined(__x86_64__)
  if (level == 2) return {avx512::kKernels, avx512::kBucketKernels, avx512::kGroupKernels};
  if (level == 1) return {avx2::kKernels, avx2::kBucketKernels, avx2::kGroupKernels};
#endif
  static_cast<void>(level);
  return {baseline::kKernels, baseline::kBucketKernels, baseline::kGroupKernels};
}

const Level& Chosen() {
  static const Level level = Choose();
  return level;
}

}  // namespace

SimdRequest RequestedSimd() {
  const int requested = Requested();
  if (requested < 0) return SimdRequest::kUnknown;
  const bool met = requested == kNumLevels || requested <= Highest();
  return met ? SimdRequest::kMet : SimdRequest::kNotOfThisCpu;
}

const RowKernels& Kernels() { return Chosen().rows; }
const BucketKernels& KernelsOfBuckets() { return Chosen().buckets; }
const GroupKernels& KernelsOfGroups() { return Chosen().groups; }

}  // namespace twml
