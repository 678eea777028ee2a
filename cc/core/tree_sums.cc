#include "cc/core/tree_sums.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cc/core/simd_dispatch.h"

namespace twml {
namespace {

constexpr int64_t kMaxDepth = 1024;
constexpr int64_t kRowsPerBlock =
    kTreeRows;  // rows that go through a tree while it is in the cache
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

// Trees as conditions and leaves (Lucchese et al., 2015, "QuickScorer"). All conditions of a tree
// are evaluated, for many rows at a time, instead of the nodes of one path after the other.
class FlatTrees {
 public:
  FlatTrees(const TreeNodes& nodes, const int32_t* roots, int64_t n, int64_t max_depth)
      : nodes_(nodes) {
    trees_.reserve(n);
    for (int64_t t = 0; t < n; ++t) {
      const size_t first = conditions_.size(), first_leaf = leaves_.size();
      const bool flat = Add(roots[t], max_depth, first_leaf);
      if (!flat) {
        conditions_.resize(first);
        leaves_.resize(first_leaf);
      }
      const int64_t number = static_cast<int64_t>(conditions_.size() - first);
      trees_.push_back({static_cast<int64_t>(first), flat ? number : kNotFlat,
                        static_cast<int64_t>(first_leaf)});
    }
  }

  // Adds to sums[r] the values of the leaves of `rows` rows in tree t; false: it has no such form.
  // `columns` has kTreeRows numbers of each column.
  bool AddLeaves(int64_t t, const float* columns, int64_t rows, float* sums) const {
    const Tree& tree = trees_[t];
    if (tree.number == kNotFlat) return false;
    uint32_t left[kTreeRows];
    GetScoringKernels().leaves_left(columns, conditions_.data() + tree.first, tree.number, left);
    const float* const values = leaves_.data() + tree.first_leaf;
    for (int64_t r = 0; r < rows; ++r) sums[r] += values[__builtin_ctz(left[r])];
    return true;
  }

 private:
  static constexpr int64_t kNotFlat = -1;

  struct Tree {
    int64_t first, number, first_leaf;
  };

  // Adds the node and those below it; false if it has too many leaves or too long paths.
  bool Add(int32_t node, int64_t depth, size_t first_leaf) {
    const int32_t left = nodes_.children[2 * node], right = nodes_.children[2 * node + 1];
    if (left == node && right == node) {
      leaves_.push_back(nodes_.values[node]);
      return leaves_.size() - first_leaf <= kTreeLeaves;
    }
    if (depth == 0) return false;
    const size_t index = conditions_.size(), before = leaves_.size() - first_leaf;
    conditions_.push_back(
        {nodes_.features[node], nodes_.thresholds[node], nodes_.missing_left[node], 0});
    if (!Add(left, depth - 1, first_leaf)) return false;
    const size_t after = leaves_.size() - first_leaf;  // at most kTreeLeaves
    const uint64_t below = ((uint64_t{1} << after) - 1) & ~((uint64_t{1} << before) - 1);
    conditions_[index].if_right = ~static_cast<uint32_t>(below);
    return Add(right, depth - 1, first_leaf);
  }

  const TreeNodes nodes_;
  std::vector<TreeCondition> conditions_;
  std::vector<float> leaves_;
  std::vector<Tree> trees_;
};

// The same sums as SumRows, of all trees for all rows.
void SumManyRows(const Matrix<const float>& x, const FlatTrees& trees, const TreeNodes& nodes,
                 const int32_t* roots, int64_t num_trees, int64_t max_depth, float scale,
                 float* sums) {
  std::fill(sums, sums + x.rows, 0.0f);
  std::vector<float> columns(x.dim * kTreeRows);
  for (int64_t first = 0; first < x.rows; first += kTreeRows) {
    const int64_t rows = std::min(x.rows - first, kTreeRows);
    const float* const block = x.data + first * x.dim;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < x.dim; ++c) columns[c * kTreeRows + r] = block[r * x.dim + c];
    }
    for (int64_t t = 0; t < num_trees; ++t) {
      if (trees.AddLeaves(t, columns.data(), rows, sums + first)) continue;
      AddLeaves(
          block, x.dim, rows, nodes, 1, max_depth, [&](int64_t) { return roots + t; },
          sums + first);
    }
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
  if (all && x.rows >= kTreeRows) {  // the other form costs as much as the paths of about 16 rows
    const FlatTrees trees(nodes, roots.data, num_trees, max_depth);
    parallel_for(x.rows, cost, [&](int64_t begin, int64_t end) {
      SumManyRows({x.data + begin * x.dim, end - begin, x.dim}, trees, nodes, roots.data, num_trees,
                  max_depth, scale, sums + begin);
    });
    return Status();
  }
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
