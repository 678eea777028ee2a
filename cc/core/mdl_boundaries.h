// Supervised discretization by the minimum description length principle (Fayyad, Irani:
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

// Computes the cut points of n distinct values in ascending order, where counts[i * classes + c] is
// the number (or weight) of the examples of class c with value i. The result are positions i in
// (0, n) in ascending order. A cut at i lies between the values i - 1 and i.
//
// A set S of N examples is cut at the position that leaves the least class entropy if the gain is
// more than (log2(N - 1) + log2(3^k - 2) - [k Ent(S) - k1 Ent(S1) - k2 Ent(S2)]) / N, where k, k1
// and k2 are the numbers of classes in S and its two parts. The parts are then cut in the same way.
std::vector<int64_t> MdlCutPoints(Span<const double> counts, int64_t classes);

// Computes the boundaries of features from one sketch per class. They are exact while the sketches
// are exact; otherwise the ranks are within the epsilon of the sketches. `right` has the meaning
// that it has for QuantileSketch::Boundaries.
void MdlBoundaries(const std::vector<const QuantileSketch*>& classes, Span<const int64_t> ids,
                   bool right, const ParallelFor& parallel_for, QuantileBoundaries* out);

}  // namespace twml

#endif  // TWML_CORE_MDL_BOUNDARIES_H_
