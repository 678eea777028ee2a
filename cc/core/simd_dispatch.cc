#include "cc/core/simd_dispatch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace twml {
namespace baseline {
extern const RowKernels kRowKernels;
extern const BucketKernels kBucketKernels;
extern const GroupKernels kGroupKernels;
extern const QuantizeKernels kQuantizeKernels;
extern const ScoringKernels kScoringKernels;
}  // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
extern const RowKernels kRowKernels;
extern const BucketKernels kBucketKernels;
extern const GroupKernels kGroupKernels;
extern const QuantizeKernels kQuantizeKernels;
extern const ScoringKernels kScoringKernels;
}  // namespace avx2
namespace avx512 {
extern const RowKernels kRowKernels;
extern const BucketKernels kBucketKernels;
extern const GroupKernels kGroupKernels;
extern const QuantizeKernels kQuantizeKernels;
extern const ScoringKernels kScoringKernels;
}  // namespace avx512
#endif

namespace {

struct LevelKernels {
  const RowKernels& rows;
  const BucketKernels& buckets;
  const GroupKernels& groups;
  const QuantizeKernels& quantize;
  const ScoringKernels& scoring;
};

constexpr int kNumLevels = std::size(kSimdLevels);

// The highest level that this CPU supports, as an index into kSimdLevels.
int HighestLevel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return 2;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

// The level named by the environment variable, as an index into kSimdLevels. kNumLevels if the
// variable is not set, and -1 if it names no level.
int RequestedLevel() {
  const char* requested = std::getenv(kSimdVariable);
  if (requested == nullptr || *requested == '\0') return kNumLevels;
  for (int i = 0; i < kNumLevels; ++i) {
    if (std::strcmp(requested, kSimdLevels[i]) == 0) return i;
  }
  return -1;
}

LevelKernels ChooseKernels() {
  const int requested = RequestedLevel();
  const int level = requested < 0 ? HighestLevel() : std::min(requested, HighestLevel());
#if defined(__x86_64__)
  if (level == 2)
    return {avx512::kRowKernels, avx512::kBucketKernels, avx512::kGroupKernels,
            avx512::kQuantizeKernels, avx512::kScoringKernels};
  if (level == 1)
    return {avx2::kRowKernels, avx2::kBucketKernels, avx2::kGroupKernels, avx2::kQuantizeKernels,
            avx2::kScoringKernels};
#endif
  static_cast<void>(level);
  return {baseline::kRowKernels, baseline::kBucketKernels, baseline::kGroupKernels,
          baseline::kQuantizeKernels, baseline::kScoringKernels};
}

const LevelKernels& GetKernels() {
  static const LevelKernels kernels = ChooseKernels();
  return kernels;
}

}  // namespace

SimdRequest CheckSimdRequest() {
  const int requested = RequestedLevel();
  if (requested < 0) return SimdRequest::kUnknown;
  const bool satisfied = requested == kNumLevels || requested <= HighestLevel();
  return satisfied ? SimdRequest::kSatisfied : SimdRequest::kUnsupported;
}

const RowKernels& GetRowKernels() { return GetKernels().rows; }
const BucketKernels& GetBucketKernels() { return GetKernels().buckets; }
const GroupKernels& GetGroupKernels() { return GetKernels().groups; }
const QuantizeKernels& GetQuantizeKernels() { return GetKernels().quantize; }
const ScoringKernels& GetScoringKernels() { return GetKernels().scoring; }

}  // namespace twml
