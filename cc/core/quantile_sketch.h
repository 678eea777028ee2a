// Quantiles of many streams at once: one mergeable sketch per feature, and one flat state for all.
//
// The algorithm is KLL (Karnin, Lang, Liberty: "Optimal Quantile Approximation in Streams", FOCS
// 2016). A level holds values of one weight, 2^level. When a feature has too many values, a level
// is compacted: it is sorted, and every other value (the odd or the even ones, by a fair coin flip)
// moves to the next level. There are two additions to KLL:
//  - Before a level is compacted, pairs of equal values move to the next level, which loses no
//    information. A feature with few distinct values is therefore kept exactly, as the binary
//    digits of each value's count, for a stream of any length. This is guaranteed for at most
//    `exact_values` distinct values. A stream is also exact until it outgrows the first levels
//    (about 1 / epsilon values).
//  - A weight is added as its binary digits, so a weighted stream needs no other data structure.
//
// Error bound. A compaction changes the rank of a value by at most the level's weight w, up or down
// with the same probability. The sum of all changes is therefore sub-Gaussian with the variance
// V = sum of w^2 (Azuma-Hoeffding): |error| > sqrt(2 V ln(2 / p)) with probability at most p.
// Moreover, |error| is never more than the sum of all w. The bound that Describe() reports is the
// lesser of the two for the compactions that were really done. The capacities of the levels are
// chosen such that for p = kFailureProbability it stays below epsilon times the total weight. A
// level h steps below the top has (2/3)^h of the top level's capacity; all levels together hold at
// most about 10 / epsilon values. V and the sums add up under Merge, and so do the bounds.
//
// Coin flips are a hash of the feature, of the number of its coin flips so far and of some values
// of the level. The same stream of a feature therefore gives the same sketch, no matter how its
// entries are divided into batches and how many threads there are.
#ifndef TWML_CORE_QUANTILE_SKETCH_H_
#define TWML_CORE_QUANTILE_SKETCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/id_index.h"
#include "cc/core/parallel.h"
#include "cc/core/scratch.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

struct QuantileSketchOptions {
  double epsilon = 1e-3;       // rank error as a fraction of the total weight, in [1e-5, 0.5]
  int64_t exact_values = 256;  // features with at most so many distinct values are exact
  bool weighted = false;       // whether Update accepts weights
};

// The state of a sketch as plain arrays, with one row per feature in ascending order of the feature
// ids. Equal sketches have equal arrays. Feature f has counters[f][3] runs. `items` holds the
// sorted values of each run, followed by counters[f][2] buffered items that are not sorted yet.
// Buffered items are values, or pairs (value, weight) in a weighted sketch.
template <template <class> class Array>
struct QuantileSketchArrays {
  static constexpr int64_t kConfig = 4;    // version, epsilon, exact_values, weighted
  static constexpr int64_t kTotals = 7;    // weight, weight of NaNs, min, max, three error terms
  static constexpr int64_t kCounters = 4;  // coin flips, compactions, buffered items, runs
  static constexpr int64_t kRun = 2;       // level, number of values

  Array<double> config;        // [4]
  Array<int64_t> feature_ids;  // [F]
  Array<double> totals;        // [F, 7]
  Array<int64_t> counters;     // [F, 4]
  Array<int32_t> runs;         // [R, 2]
  Array<float> items;          // [I]
};
template <class T>
using ConstSpan = Span<const T>;
using QuantileSketchState = QuantileSketchArrays<ConstSpan>;
using MutableQuantileSketchState = QuantileSketchArrays<Span>;

struct SketchFeature;
class SketchSchedule;

// Boundaries of some features, in the form that Buckets (cc/core/discretize.h) takes.
struct QuantileBoundaries {
  std::vector<float> boundaries;
  std::vector<int64_t> splits;
};

class QuantileSketch {
 public:
  static constexpr double kFailureProbability = 0.01;

  static Status Make(const QuantileSketchOptions& options, std::unique_ptr<QuantileSketch>* out);
  static Status FromState(const QuantileSketchState& state, const ParallelFor& parallel_for,
                          std::unique_ptr<QuantileSketch>* out);
  ~QuantileSketch();

  const QuantileSketchOptions& options() const { return options_; }
  int64_t num_features() const { return index_.size(); }
  int64_t bytes() const;  // memory in use

  // Adds values[k] to feature ids[k] (any int64) with the weight weights[k], or 1 if weights is
  // empty. NaNs count as missing; infinities are values. Weights must be in [0, 2^31] and are
  // rounded to 16 significant bits, up or down at random such that the mean is kept. If the call
  // fails, nothing changes.
  Status Update(Span<const int64_t> ids, Span<const float> values, Span<const float> weights,
                const ParallelFor& parallel_for);

  // Adds everything that another sketch with the same options has seen.
  Status Merge(const QuantileSketch& other, const ParallelFor& parallel_for);

  // The ids of the features seen so far, in ascending order.
  std::vector<int64_t> FeatureIds() const;

  // Sets out[q * probabilities.size() + i] to the smallest value x of feature ids[q] with
  // rank(x) >= probabilities[i] times the total weight, or to NaN if the feature has no values. The
  // probabilities 0 and 1 give the exact minimum and maximum.
  Status Quantiles(Span<const int64_t> ids, Span<const double> probabilities,
                   const ParallelFor& parallel_for, float* out) const;

  // Sets out[k] to the weight of the values <= values[k] of feature ids[k], or 0 for a feature that
  // was not seen.
  Status Ranks(Span<const int64_t> ids, Span<const float> values, const ParallelFor& parallel_for,
               double* out) const;

  // Writes four numbers for each feature ids[q] to out[4 * q]: the total weight, the weight of its
  // NaNs, the bound of the rank error (in units of weight; it holds with probability
  // 1 - kFailureProbability), and the number of values and weights in memory. All are 0 for a
  // feature that was not seen.
  static constexpr int64_t kNumStatistics = 4;
  void Describe(Span<const int64_t> ids, double* out) const;

  // Computes boundaries that divide the values of feature ids[q] into at most bins[q] bins. If
  // there are no more distinct values than bins, each value gets a bin. Otherwise there is a cut
  // after the smallest value x with rank(x) >= i / bins of the weight, for 0 < i < bins; equal cuts
  // are merged. A boundary is the last value before its cut, or the first value after it if `right`
  // is set.
  Status Boundaries(Span<const int64_t> ids, Span<const int64_t> bins, bool right,
                    const ParallelFor& parallel_for, QuantileBoundaries* out) const;

  // The distinct values of one feature in ascending order, and their weights.
  void Values(int64_t id, std::vector<float>* values, std::vector<double>* weights) const;

  // Moves the features of another sketch with the same options to this one, which must have none of
  // them. With it a sketch can be read in parts without holding it in memory twice.
  Status Splice(QuantileSketch* other);

  // The sizes of the state's arrays, and a function that writes the state to arrays of these sizes.
  // Both take a range of features in ascending order of their ids; the default is all features.
  struct StateSizes {
    int64_t features, runs, items;
  };
  StateSizes Sizes(int64_t first = 0, int64_t last = INT64_MAX) const;
  void Write(const MutableQuantileSketchState& out, int64_t first = 0,
             int64_t last = INT64_MAX) const;

 private:
  struct CumulativeEntry;
  // The entries of a part of the stream, grouped by feature in stable order.
  struct FeatureGroups {
    std::vector<uint32_t> features, splits;
    Scratch<float> values, weights;  // weights: only in a weighted sketch
  };

  explicit QuantileSketch(const QuantileSketchOptions& options);
  SketchFeature& feature(int64_t f) const;
  int64_t FindOrAdd(int64_t id);
  void UpdatePiece(Span<const int64_t> ids, Span<const float> values, const float* weights,
                   const ParallelFor& parallel_for);
  FeatureGroups GroupByFeature(Span<const int64_t> ids, Span<const float> values,
                               const float* weights, const ParallelFor& parallel_for);
  Scratch<uint32_t> FeatureNumbers(Span<const int64_t> ids, const ParallelFor& parallel_for);
  void CumulativeEntries(const SketchFeature& feature, std::vector<CumulativeEntry>* entries) const;
  std::vector<int64_t> AscendingOrder(int64_t first = 0, int64_t last = INT64_MAX) const;
  Status CheckOptions(const QuantileSketch& other) const;

  const QuantileSketchOptions options_;
  std::unique_ptr<const SketchSchedule> schedule_;
  uint32_t initial_buffer_limit_ = 0;  // for a feature without values
  IdIndex index_;
  std::vector<std::unique_ptr<SketchFeature[]>> chunks_;  // features do not move when it grows
  std::vector<uint32_t> offset_;  // used by GroupByFeature, zero between calls
};

}  // namespace twml

#endif  // TWML_CORE_QUANTILE_SKETCH_H_
