// Quantiles of many streams at once: one mergeable sketch a feature, all in one flat state.
//
// The algorithm is KLL (Karnin, Lang, Liberty: "Optimal Quantile Approximation in Streams", FOCS
// 2016), with two additions. A level holds values of one weight, 2^level; when there is no room, a
// level is sorted and every other value of it, the odd or the even ones by a fair coin, moves up.
//  - Equal values move up first, in pairs, which loses nothing. A feature of few distinct values
//    is therefore kept exactly, as the binary digits of each value's count, however long the
//    stream: certainly with at most `exact_values` distinct ones. And a stream is exact until it
//    outgrows the first levels (about 1 / epsilon values).
//  - A weight enters as its binary digits, so a weighted stream needs no other structure.
//
// Error. A coin moves the rank of a value by at most the level's weight w, in either direction with
// the same probability, so the sum of all moves has the sub-Gaussian variance V = sum of w^2
// (Azuma-Hoeffding): |error| > sqrt(2 V ln(2 / p)) with probability at most p; and |error| is
// never more than the sum of all w. RankError() is the lesser of the two for what really happened.
// The capacities of the levels are chosen such that for p = kFailure it stays below epsilon times
// the total weight. Levels h steps below the top hold (2/3)^h of its capacity, at most about
// 10 / epsilon values together. V and the sums add up under Merge, and so do the bounds.
//
// Coins come from a hash of the feature, of how many coin_flips it has thrown and of the values at
// hand: the same stream of a feature gives the same sketch, however the entries are cut into
// batches and whatever the number of threads.
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
  double epsilon = 1e-3;       // rank error, as a share of the total weight; in [1e-5, 0.5]
  int64_t exact_values = 256;  // so many distinct values of a feature are always kept exactly
  bool weighted = false;       // whether updates may have weights
};

// The state as plain arrays, one row a feature, features ascending; equal sketches give equal
// arrays. Feature f has counters[f][3] of the runs and, one after the other in `items`, the sorted
// values of each run and then counters[f][2] items not yet sorted in: values, or (value, weight)
// pairs of a weighted sketch.
template <template <class> class Array>
struct QuantileSketchArrays {
  static constexpr int64_t kConfig = 4;    // version, epsilon, exact_values, weighted
  static constexpr int64_t kTotals = 7;    // weight, missing weight, min, max, error budget (3)
  static constexpr int64_t kCounters = 4;  // coin_flips, compactions, items not sorted in, runs
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

// Boundaries of some features, as Buckets (cc/core/discretize.h) takes them.
struct QuantileBoundaries {
  std::vector<float> boundaries;
  std::vector<int64_t> splits;
};

class QuantileSketch {
 public:
  static constexpr double kFailure = 0.01;

  static Status Make(const QuantileSketchOptions& options, std::unique_ptr<QuantileSketch>* out);
  static Status FromState(const QuantileSketchState& state, const ParallelFor& parallel_for,
                          std::unique_ptr<QuantileSketch>* out);
  ~QuantileSketch();

  const QuantileSketchOptions& options() const { return options_; }
  int64_t num_features() const { return index_.size(); }
  int64_t bytes() const;  // of memory held

  // Takes in values[k] of feature ids[k], any int64, with weight weights[k], or 1 if there are
  // none. A NaN counts as missing; infinities are values. Weights: in [0, 2^31]; more than 16
  // significant bits are rounded, either way such that the mean stays. A refused call changes
  // nothing.
  Status Update(Span<const int64_t> ids, Span<const float> values, Span<const float> weights,
                const ParallelFor& parallel_for);

  // Takes in all that another sketch of the same options has seen.
  Status Merge(const QuantileSketch& other, const ParallelFor& parallel_for);

  // The features seen, ascending.
  std::vector<int64_t> FeatureIds() const;

  // out[q * probabilities + i]: the least value x of feature ids[q] with rank(x) >=
  // probabilities[i] times the total weight; the least value of all for 0 and NaN for a feature
  // without values. Both extremes are exact.
  Status Quantiles(Span<const int64_t> ids, Span<const double> probabilities,
                   const ParallelFor& parallel_for, float* out) const;

  // out[k]: the weight of the values <= values[k] of feature ids[k]; 0 for a feature not seen.
  Status Ranks(Span<const int64_t> ids, Span<const float> values, const ParallelFor& parallel_for,
               double* out) const;

  // out[q * 4]: of feature ids[q], the total weight, the weight of its NaNs, the proven bound of
  // the rank error (in units of weight, with probability 1 - kFailure), and how many values and
  // weights are held for it. Zeros for a feature not seen.
  static constexpr int64_t kNumStatistics = 4;
  void Describe(Span<const int64_t> ids, double* out) const;

  // The boundaries that cut the values of feature ids[q] into at most bins[q] bins. With no more
  // distinct values than bins each gets a bin. Otherwise the cuts are behind the least value x
  // with rank(x) >= i / bins of the weight, 0 < i < bins; equal cuts are one. right: a boundary is
  // the first value after its cut and not the last before it.
  Status Boundaries(Span<const int64_t> ids, Span<const int64_t> bins, bool right,
                    const ParallelFor& parallel_for, QuantileBoundaries* out) const;

  // The distinct values of one feature, ascending, with their weights.
  void Values(int64_t id, std::vector<float>* values, std::vector<double>* weights) const;

  // Takes over the features of another sketch of the same options, none of which is here yet: a
  // sketch is read in parts without a second one beside it.
  Status Splice(QuantileSketch* other);

  // The numbers of features, runs and items of the state, and the state into arrays of that size:
  // of all features, or of the first .. last of them, ascending.
  struct StateSizes {
    int64_t features, runs, items;
  };
  StateSizes Sizes(int64_t first = 0, int64_t last = INT64_MAX) const;
  void Write(const MutableQuantileSketchState& out, int64_t first = 0,
             int64_t last = INT64_MAX) const;

 private:
  struct CumulativeEntry;
  // Part of a stream by feature, those of one feature in their order.
  struct FeatureGroups {
    std::vector<uint32_t> features, splits;
    Scratch<float> values, weights;  // weights: of a weighted sketch
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
  uint32_t initial_buffer_limit_ = 0;  // of a feature without values
  IdIndex index_;
  std::vector<std::unique_ptr<SketchFeature[]>> chunks_;  // so that growing moves no feature
  std::vector<uint32_t> offset_;                          // of Group: zeros between calls
};

}  // namespace twml

#endif  // TWML_CORE_QUANTILE_SKETCH_H_
