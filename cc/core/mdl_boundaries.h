// Supervised cuts of a continuous feature by the minimum description length (Fayyad, Irani:
// "Multi-Interval Discretization of Continuous-Valued Attributes for Classification Learning",
// IJCAI 1993).
#ifndef TWML_CORE_MDL_BOUNDARIES_H_
#define TWML_CORE_MDL_BOUNDARIES_H_

#include <cstdint>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/quantile_sketch.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// Where to cut `n` distinct ascending values of which class c has counts[i * classes + c] examples
// (or their weight) at value i: positions i in (0, n), ascending; a cut at i lies between the
// values i - 1 and i.
//
// A set S of N examples is cut at the position that leaves the least class entropy if its gain is
// more than (log2(N - 1) + log2(3^k - 2) - [k Ent(S) - k1 Ent(S1) - k2 Ent(S2)]) / N, k being the
// numbers of classes in S and its parts; and so on in both parts.
std::vector<int64_t> MdlCutPoints(Span<const double> counts, int64_t classes);

// The boundaries of features whose values of each class are in a sketch of its own: exactly those
// of the definition while the sketches are exact, else of ranks within their epsilon. right: as of
// QuantileSketch::Boundaries.
void MdlBoundaries(const std::vector<const QuantileSketch*>& classes, Span<const int64_t> ids,
                   bool right, const ParallelFor& parallel_for, QuantileBoundaries* out);

}  // namespace twml

#endif  // TWML_CORE_MDL_BOUNDARIES_H_
