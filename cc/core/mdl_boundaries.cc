#include "cc/core/mdl_boundaries.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace twml {
namespace {

// A set of examples. weighted_entropy is the class entropy times the number of examples: n log2 n
// minus the sum of n_c log2 n_c over the classes.
struct Part {
  double examples = 0, weighted_entropy = 0;
  int64_t classes = 0;
  double entropy() const { return examples > 0 ? weighted_entropy / examples : 0; }
};

double XLog2X(double x) { return x > 0 ? x * std::log2(x) : 0; }

class Cutter {
 public:
  Cutter(Span<const double> counts, int64_t classes)
      : classes_(classes), n_(counts.size() / classes), before_((n_ + 1) * classes, 0.0) {
    for (int64_t i = 0; i < counts.size(); ++i) before_[i + classes] = before_[i] + counts[i];
  }

  std::vector<int64_t> Cut() {
    std::vector<int64_t> cuts;
    std::vector<std::pair<int64_t, int64_t>> open = {
        {0, n_}};  // no recursion, because the depth may be n
    while (!open.empty()) {
      const auto [begin, end] = open.back();
      open.pop_back();
      const int64_t at = BestCut(begin, end);
      if (at < 0) continue;
      cuts.push_back(at);
      open.push_back({begin, at});
      open.push_back({at, end});
    }
    std::sort(cuts.begin(), cuts.end());
    return cuts;
  }

 private:
  Part PartOf(int64_t begin, int64_t end) const {
    Part part;
    double sum = 0;
    for (int64_t c = 0; c < classes_; ++c) {
      const double count = before_[end * classes_ + c] - before_[begin * classes_ + c];
      part.examples += count;
      part.classes += count > 0;
      sum += XLog2X(count);
    }
    part.weighted_entropy = std::max(0.0, XLog2X(part.examples) - sum);
    return part;
  }

  // The position at which [begin, end) is cut, or -1.
  int64_t BestCut(int64_t begin, int64_t end) const {
    const Part all = PartOf(begin, end);
    if (all.classes < 2 || all.examples <= 1) return -1;
    int64_t best = -1;
    Part left, right;
    for (int64_t at = begin + 1; at < end; ++at) {
      const Part l = PartOf(begin, at), r = PartOf(at, end);
      if (best < 0 || l.weighted_entropy + r.weighted_entropy <
                          left.weighted_entropy + right.weighted_entropy) {
        best = at;
        left = l;
        right = r;
      }
    }
    if (best < 0) return -1;
    const auto k = static_cast<double>(all.classes);
    const double gain =
        (all.weighted_entropy - left.weighted_entropy - right.weighted_entropy) / all.examples;
    // log2(3^k - 2), computed without overflow
    const double delta = k * std::log2(3.0) + std::log2(1 - 2 * std::pow(3.0, -k)) -
                         (k * all.entropy() - static_cast<double>(left.classes) * left.entropy() -
                          static_cast<double>(right.classes) * right.entropy());
    const double threshold = (std::log2(all.examples - 1) + delta) / all.examples;
    return gain > threshold ? best : -1;
  }

  const int64_t classes_, n_;
  std::vector<double> before_;  // [n + 1, classes]: cumulative counts of the values before
};

}  // namespace

std::vector<int64_t> MdlCutPoints(Span<const double> counts, int64_t classes) {
  return Cutter(counts, classes).Cut();
}

void MdlBoundaries(const std::vector<const QuantileSketch*>& classes, Span<const int64_t> ids,
                   bool right, const ParallelFor& parallel_for, QuantileBoundaries* out) {
  const auto num_classes = static_cast<int64_t>(classes.size());
  std::vector<std::vector<float>> cuts(ids.size());
  constexpr int64_t kCost = 100'000;
  parallel_for(ids.size(), kCost, [&](int64_t begin, int64_t end) {
    for (int64_t q = begin; q < end; ++q) {
      std::vector<std::vector<float>> of_class(num_classes);
      std::vector<std::vector<double>> weights(num_classes);
      std::vector<float> values;
      for (int64_t c = 0; c < num_classes; ++c) {
        classes[c]->Values(ids[q], &of_class[c], &weights[c]);
        values.insert(values.end(), of_class[c].begin(), of_class[c].end());
      }
      std::sort(values.begin(), values.end());
      values.erase(std::unique(values.begin(), values.end()), values.end());
      std::vector<double> counts(values.size() * num_classes, 0.0);
      for (int64_t c = 0; c < num_classes; ++c) {
        size_t at = 0;
        for (size_t i = 0; i < of_class[c].size(); ++i) {
          while (values[at] != of_class[c][i]) ++at;
          counts[at * num_classes + c] = weights[c][i];
        }
      }
      for (const int64_t cut : MdlCutPoints(counts, num_classes)) {
        cuts[q].push_back(values[right ? cut : cut - 1]);
      }
    }
  });
  out->boundaries.clear();
  out->splits.assign(1, 0);
  for (const auto& of_feature : cuts) {
    out->boundaries.insert(out->boundaries.end(), of_feature.begin(), of_feature.end());
    out->splits.push_back(static_cast<int64_t>(out->boundaries.size()));
  }
}

}  // namespace twml
