// Running z-scores: y = clip((v - mean) / sd, -c, c) + b with the mean and the standard deviation
// that each feature has shown so far.
#ifndef TWML_CORE_ONLINE_STANDARDIZE_H_
#define TWML_CORE_ONLINE_STANDARDIZE_H_

#include <cstdint>

#include "cc/core/normalization.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// What has been seen of a feature: how many values, their mean, and the sum of their squared
// distances from it.
struct Moments {
  double count, mean, m2;
};

struct StandardizeOptions {
  float epsilon = 1e-6f;  // least standard deviation; a positive normal number
  float clip = 10;        // positive
  double decay = 1;       // of what was seen before, at each batch that has the feature; in (0, 1]
  NonFinitePolicy nonfinite =
      NonFinitePolicy::kError;  // of infinities; they never enter the moments
};

// What two disjoint parts of the values have shown together (Chan, Golub, LeVeque: "Updating
// Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
Moments MergeMoments(const Moments& a, const Moments& b);

// Inference. ids in [0, moments.size()); a NaN is a missing value: y = b. So is every value of a
// feature that has not been seen. bias: one item a feature, or null for none. scale: 1 / sd, and 0
// where clipped or replaced.
template <class Id>
Status Standardize(const NormBatch<Id>& batch, Span<const Moments> moments,
                   const Span<const float>* bias, const StandardizeOptions& options,
                   const ParallelFor& parallel_for, NormOutput out);

// Training: first takes the batch into the moments, O(entries), then standardizes with them. The
// values of a feature are summed in their order, whatever the threads. A refused batch leaves the
// moments alone.
template <class Id>
Status StandardizeTraining(const NormBatch<Id>& batch, Span<Moments> moments,
                           const Span<const float>* bias, const StandardizeOptions& options,
                           const ParallelFor& parallel_for, NormOutput out);

}  // namespace twml

#endif  // TWML_CORE_ONLINE_STANDARDIZE_H_
