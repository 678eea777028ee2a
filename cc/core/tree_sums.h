// Evaluation of ensembles of binary decision trees.
#ifndef TWML_CORE_TREE_SUMS_H_
#define TWML_CORE_TREE_SUMS_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/sparse_linear.h"
#include "cc/core/status.h"

namespace twml {

// The nodes of all trees, M in number. From node i, a row x goes to children[2 i] if
// x[features[i]] <= thresholds[i], or, if that number is NaN, if missing_left[i]; otherwise it goes
// to children[2 i + 1]. Both children of a leaf are the leaf itself.
struct TreeNodes {
  Span<const int32_t> features;  // columns of x
  Span<const float> thresholds;
  Span<const uint8_t> missing_left;  // 0 or 1
  Span<const int32_t> children;      // 2 M items
  Span<const float> values;          // of the leaves
};

// Checks that the nodes fit together and that all their numbers are in range, for rows of `columns`
// numbers.
Status CheckTrees(const TreeNodes& nodes, const Matrix<const int32_t>& roots, int64_t columns);

// Writes for each row of x the mean over the ensembles of the sums of the leaves, on the calling
// thread. The trees must be valid; see CheckTrees.
void MeanTreeSums(const Matrix<const float>& x, const TreeNodes& nodes,
                  const Matrix<const int32_t>& roots, int64_t max_depth, float* sums);

// Writes for each row of x the sum of the values of its leaves, in the order of the trees. Row e of
// `roots` has the root of each tree of ensemble e. Row b of x goes through the trees of ensemble
// ensembles[b]. If `ensembles` is empty, it goes through all trees and gets the mean of the
// ensembles. A path has at most max_depth steps, in [0, 1024]. The result does not depend on the
// threads.
Status TreeSums(const Matrix<const float>& x, Span<const int64_t> ensembles, const TreeNodes& nodes,
                const Matrix<const int32_t>& roots, int64_t max_depth,
                const ParallelFor& parallel_for, float* sums);

}  // namespace twml

#endif  // TWML_CORE_TREE_SUMS_H_
