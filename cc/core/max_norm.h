// Online normalization: y = clip(v / max(m, epsilon), -1, 1) + b, where m is the largest |v| seen
// so far of the feature.
#ifndef TWML_CORE_MAX_NORM_H_
#define TWML_CORE_MAX_NORM_H_

#include <cstdint>

#include "cc/core/normalization.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

struct MaxNormOptions {
  float epsilon = 1e-6f;                                // a positive normal number
  NonFinitePolicy nonfinite = NonFinitePolicy::kError;  // applies to NaNs and infinities
  // In training, max_abs of a feature is multiplied by this factor once per batch that has a finite
  // value of the feature, before the maximum is taken. A drifting feature thereby forgets an old
  // peak. In (0, 1].
  float decay = 1;
};

// The scale is 1 / m, and 0 if the value was clipped (|v| > m) or replaced. For |v| = m it is 1 /
// m: in training this is always the case for the largest value of a feature, which must not lose
// its gradient.
//
// Inference: max_abs [input_dim] is only read. bias is [input_dim], or null.
template <class Id>
Status MaxNorm(const NormBatch<Id>& batch, Span<const float> max_abs, const Span<const float>* bias,
               const MaxNormOptions& options, const ParallelFor& parallel_for, NormOutput out);

// Training: first updates max_abs with the batch's largest |v| of each id, in O(entries), and then
// normalizes with it. If the call fails, max_abs does not change.
template <class Id>
Status MaxNormTraining(const NormBatch<Id>& batch, Span<float> max_abs,
                       const Span<const float>* bias, const MaxNormOptions& options,
                       const ParallelFor& parallel_for, NormOutput out);

}  // namespace twml

#endif  // TWML_CORE_MAX_NORM_H_
