// Chooses at run time which SIMD level's kernels are used.
#ifndef TWML_CORE_SIMD_DISPATCH_H_
#define TWML_CORE_SIMD_DISPATCH_H_

#include "cc/core/simd/bucket_kernels.h"
#include "cc/core/simd/group_kernels.h"
#include "cc/core/simd/quantize_kernels.h"
#include "cc/core/simd/row_kernels.h"
#include "cc/core/simd/scoring_kernels.h"

namespace twml {

// The kernels of the best level that this CPU supports. The environment variable TWML_OPS_SIMD can
// lower the level.
const RowKernels& GetRowKernels();
const GroupKernels& GetGroupKernels();
const BucketKernels& GetBucketKernels();
const QuantizeKernels& GetQuantizeKernels();
const ScoringKernels& GetScoringKernels();

constexpr const char* kSimdVariable = "TWML_OPS_SIMD";
constexpr const char* kSimdLevels[] = {"baseline", "avx2", "avx512"};  // in ascending order

// What became of TWML_OPS_SIMD.
enum class SimdRequest {
  kSatisfied,    // it is not set, or names a level that this CPU supports
  kUnsupported,  // it names a level that this CPU does not support
  kUnknown,      // it names no level and is ignored
};
SimdRequest CheckSimdRequest();

}  // namespace twml

#endif  // TWML_CORE_SIMD_DISPATCH_H_
