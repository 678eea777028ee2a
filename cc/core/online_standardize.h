// Running z-scores: y = clip((v - mean) / sd, -c, c) + b, with the mean and the standard deviation
// of the values of each feature seen so far.
#ifndef TWML_CORE_ONLINE_STANDARDIZE_H_
#define TWML_CORE_ONLINE_STANDARDIZE_H_

#include <cstdint>

#include "cc/core/normalization.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// The moments of the values of a feature: their number, their mean, and the sum of their squared
// deviations from the mean.
struct Moments {
  double count, mean, m2;
};

struct StandardizeOptions {
  float epsilon = 1e-6f;  // lower bound of the standard deviation; positive and normal
  float clip = 10;        // positive
  double decay = 1;  // weight of earlier batches, applied per batch with the feature; in (0, 1]
  NonFinitePolicy nonfinite = NonFinitePolicy::kError;  // applies to infinities
};

// The moments of the union of two disjoint sets of values (Chan, Golub, LeVeque: "Updating Formulae
// and a Pairwise Algorithm for Computing Sample Variances", 1979).
Moments MergeMoments(const Moments& a, const Moments& b);

// Inference. The ids are in [0, moments.size()). A NaN is a missing value, for which y = b. The
// same holds for every value of a feature that has not been seen. bias has one item per feature, or
// is null. The scale is 1 / sd, and 0 if the value was clipped or replaced.
template <class Id>
Status Standardize(const NormBatch<Id>& batch, Span<const Moments> moments,
                   const Span<const float>* bias, const StandardizeOptions& options,
                   const ParallelFor& parallel_for, NormOutput out);

// Training: first adds the batch to the moments, in O(entries), and then standardizes with them.
// The values of a feature are added in their order, for any number of threads. If the call fails,
// the moments do not change.
template <class Id>
Status StandardizeTraining(const NormBatch<Id>& batch, Span<Moments> moments,
                           const Span<const float>* bias, const StandardizeOptions& options,
                           const ParallelFor& parallel_for, NormOutput out);

}  // namespace twml

#endif  // TWML_CORE_ONLINE_STANDARDIZE_H_
