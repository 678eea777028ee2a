#include "cc/core/tree_sums.h"

#include <algorithm>
#include <cmath>

namespace twml {
namespace {

constexpr int64_t kMaxDepth = 1024;
constexpr int64_t kRowsPerBlock = 64;  // rows that go through a tree while it is in the near cache
constexpr int64_t kStepNanoseconds = 2;

// Adds to sums[r] the values of the leaves of row r in trees [0, num_trees), whose roots are
// roots_of(r)[t].
template <class RootsOf>
void AddLeaves(const float* x, int64_t columns, int64_t rows, const TreeNodes& nodes,
               int64_t num_trees, int64_t max_depth, const RootsOf& roots_of, float* sums) {
  int32_t node[kRowsPerBlock];
  for (int64_t t = 0; t < num_trees; ++t) {
    for (int64_t r = 0; r < rows; ++r) node[r] = roots_of(r)[t];
    for (int64_t depth = 0; depth < max_depth; ++depth) {
      int32_t moved = 0;
      for (int64_t r = 0; r < rows; ++r) {
        const int32_t i = node[r];
        const float number = x[r * columns + nodes.features[i]];
        const bool left =
            number <= nodes.thresholds[i] || (std::isnan(number) && nodes.missing_left[i]);
        node[r] = nodes.children[2 * i + !left];
        moved |= node[r] ^ i;
      }
      if (moved == 0) break;
    }
    for (int64_t r = 0; r < rows; ++r) sums[r] += nodes.values[node[r]];
  }
}

// Sums of the rows [0, x.rows), in blocks.
template <class RootsOf>
void SumRows(const Matrix<const float>& x, const TreeNodes& nodes, int64_t num_trees,
             int64_t max_depth, float scale, const RootsOf& roots_of, float* sums) {
  std::fill(sums, sums + x.rows, 0.0f);
  for (int64_t first = 0; first < x.rows; first += kRowsPerBlock) {
    const int64_t rows = std::min(x.rows - first, kRowsPerBlock);
    AddLeaves(
        x.data + first * x.dim, x.dim, rows, nodes, num_trees, max_depth,
        [&](int64_t r) { return roots_of(first + r); }, sums + first);
  }
  for (int64_t r = 0; r < x.rows; ++r) sums[r] *= scale;
}

float ScaleOfMean(const Matrix<const int32_t>& roots) {
  return roots.rows > 0 ? 1.0f / static_cast<float>(roots.rows) : 1.0f;
}

}  // namespace

Status CheckTrees(const TreeNodes& nodes, const Matrix<const int32_t>& roots, int64_t columns) {
  const int64_t number = nodes.features.size();
  const auto check_size = [number](const char* name, int64_t size, int64_t factor) {
    if (size == factor * number) return Status();
    return Invalid(name, " must have ", factor * number, " items, ", factor,
                   " for each of the nodes, got ", size);
  };
  TWML_RETURN_IF_ERROR(check_size("thresholds", nodes.thresholds.size(), 1));
  TWML_RETURN_IF_ERROR(check_size("missing_left", nodes.missing_left.size(), 1));
  TWML_RETURN_IF_ERROR(check_size("children", nodes.children.size(), 2));
  TWML_RETURN_IF_ERROR(check_size("values", nodes.values.size(), 1));
  const auto check_range = [](const char* name, const int32_t* items, int64_t size, int64_t limit) {
    for (int64_t i = 0; i < size; ++i) {
      if (items[i] < 0 || items[i] >= limit) {
        return Invalid(name, "[", i, "] = ", items[i], " is out of range [0, ", limit, ")");
      }
    }
    return Status();
  };
  // Columns of leaves are read too, so there must be at least one.
  TWML_RETURN_IF_ERROR(check_range("features", nodes.features.data(), number, columns));
  TWML_RETURN_IF_ERROR(check_range("children", nodes.children.data(), 2 * number, number));
  return check_range("roots", roots.data, roots.rows * roots.dim, number);
}

void MeanTreeSums(const Matrix<const float>& x, const TreeNodes& nodes,
                  const Matrix<const int32_t>& roots, int64_t max_depth, float* sums) {
  SumRows(
      x, nodes, roots.rows * roots.dim, max_depth, ScaleOfMean(roots),
      [&](int64_t) { return roots.data; }, sums);
}

Status TreeSums(const Matrix<const float>& x, Span<const int64_t> ensembles, const TreeNodes& nodes,
                const Matrix<const int32_t>& roots, int64_t max_depth,
                const ParallelFor& parallel_for, float* sums) {
  if (max_depth < 0 || max_depth > kMaxDepth) {
    return Invalid("max_depth must be in [0, ", kMaxDepth, "], got ", max_depth);
  }
  TWML_RETURN_IF_ERROR(CheckTrees(nodes, roots, x.dim));
  const bool all = ensembles.size() == 0;
  if (!all && ensembles.size() != x.rows) {
    return Invalid("ensembles must have no items or one for each of the ", x.rows, " rows of x, ",
                   "got ", ensembles.size());
  }
  for (int64_t b = 0; b < ensembles.size(); ++b) {
    if (ensembles[b] < 0 || ensembles[b] >= roots.rows) {
      return Invalid("ensembles[", b, "] = ", ensembles[b], " is out of range [0, ", roots.rows,
                     ")");
    }
  }
  const int64_t num_trees = all ? roots.rows * roots.dim : roots.dim;
  const float scale = all ? ScaleOfMean(roots) : 1.0f;
  const int64_t cost = num_trees * std::max<int64_t>(max_depth, 1) * kStepNanoseconds;
  parallel_for(x.rows, cost, [&](int64_t begin, int64_t end) {
    const Matrix<const float> rows = {x.data + begin * x.dim, end - begin, x.dim};
    const auto roots_of = [&](int64_t r) {
      return all ? roots.data : roots.data + ensembles[begin + r] * roots.dim;
    };
    SumRows(rows, nodes, num_trees, max_depth, scale, roots_of, sums + begin);
  });
  return Status();
}

}  // namespace twml
