// Online normalization: y = clip(v / max(m, epsilon), -1, 1) + b, with m the largest |v| seen of
// each feature.
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
  NonFinitePolicy nonfinite = NonFinitePolicy::kError;  // of NaNs and infinities
  // Training: max_abs of a feature is multiplied by it, once a batch that has a finite value of
  // the feature, before it is raised: a drifting feature forgets an old peak. In (0, 1].
  float decay = 1;
};

// scale: 1 / m, and 0 where the value was clipped (|v| > m) or replaced. At the edge, |v| = m, it
// is 1 / m: in training the largest value of a feature always lies there, and must not lose its
// gradient.
//
// Inference: max_abs [input_dim] is only read. bias: [input_dim], or null for none.
template <class Id>
Status MaxNorm(const NormBatch<Id>& batch, Span<const float> max_abs, const Span<const float>* bias,
               const MaxNormOptions& options, const ParallelFor& parallel_for, NormOutput out);

// Training: first raises max_abs to the batch's largest |v| of each id, O(entries), then
// normalizes with it. A refused batch leaves max_abs alone.
template <class Id>
Status MaxNormTraining(const NormBatch<Id>& batch, Span<float> max_abs,
                       const Span<const float>* bias, const MaxNormOptions& options,
                       const ParallelFor& parallel_for, NormOutput out);

}  // namespace twml

#endif  // TWML_CORE_MAX_NORM_H_
