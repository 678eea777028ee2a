// Discretization of continuous features: an entry (feature, value) becomes (id of the bucket, 1).
#ifndef TWML_CORE_DISCRETIZE_H_
#define TWML_CORE_DISCRETIZE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/core/csr.h"
#include "cc/core/feature_index.h"
#include "cc/core/hash.h"
#include "cc/core/parallel.h"
#include "cc/core/simd_dispatch.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// kLeft: bucket = #{boundaries < v}, which means intervals (a, b].
// kRight: bucket = #{boundaries <= v}, which means intervals [a, b).
// This is the convention of numpy.searchsorted. Infinities are ordinary values.
enum class Side { kLeft, kRight };

// A NaN goes to a missing-value bucket of its feature, or its entry is dropped.
enum class MissingPolicy { kBucket, kDrop };

// An entry of a feature without boundaries is passed through (with its value, at an id hashed from
// the feature), is dropped, or makes the call fail. A NaN is also passed through, unless
// MissingPolicy::kDrop drops it.
enum class UnknownPolicy { kPass, kDrop, kError };

struct DiscretizeOptions {
  Side side = Side::kLeft;
  MissingPolicy missing = MissingPolicy::kBucket;
  UnknownPolicy unknown = UnknownPolicy::kPass;
  // Each entry of an adapted feature whose value is not NaN also appears unchanged, after its
  // bucket and at an id of its own. Other entries are not repeated.
  bool keep_inputs = false;
};

// The boundaries of the adapted features, checked and indexed once and used for many batches. A
// Buckets object owns all its data.
class Buckets {
 public:
  // The boundaries of feature f, which has the id feature_ids[f], are items splits[f] to
  // splits[f + 1] of `boundaries`. feature_ids must be strictly increasing, and the boundaries of a
  // feature must be non-decreasing and must not be NaN. n boundaries make n + 1 buckets.
  static Status Make(Span<const int64_t> feature_ids, Span<const float> boundaries,
                     Span<const int64_t> splits, const ParallelFor& parallel_for, Buckets* buckets);

  int64_t num_features() const { return static_cast<int64_t>(trees_.size()) - 1; }
  int64_t num_boundaries() const { return trees_.back().begin; }
  int64_t num_boundaries(int64_t f) const { return trees_[f].count; }

  // The number of bucket ids, and the first bucket id of feature f. The ids of the features follow
  // each other; the missing-value bucket is the last of each feature.
  int64_t num_buckets(MissingPolicy missing) const { return offset(num_features(), missing); }
  int64_t offset(int64_t f, MissingPolicy missing) const {
    return trees_[f].begin + f * ExtraBuckets(missing);
  }

  // Writes the position of the feature ids[i] to f[i], or num_features() if it was not adapted.
  // Returns whether all features were adapted.
  template <class Id>
  bool Find(const Id* ids, int64_t n, int32_t* f) const {
    return features_.Find(ids, n, f);
  }

  // The position of the feature with this id, or -1.
  int64_t Find(int64_t feature_id) const {
    int32_t f;
    return Find(&feature_id, 1, &f) ? f : -1;
  }

  // Writes to bucket[i], for n entries, the bucket of values[i] within feature f[i]; 0 for a NaN.
  // f[i] may be num_features(), which has no boundaries.
  void Search(Side side, const int32_t* f, const float* values, int64_t n, int64_t* bucket) const {
    Search(side, f, values, n, -1, bucket);
  }
  // The same plus offset(f[i], missing).
  void SearchIds(Side side, MissingPolicy missing, const int32_t* f, const float* values, int64_t n,
                 int64_t* ids) const {
    Search(side, f, values, n, ExtraBuckets(missing), ids);
  }

  // Whether the trees fit into a near cache, so that prefetching does not pay off.
  bool cached() const {
    constexpr size_t kNearCacheBytes = 1 << 18;
    return lines_.size() * sizeof(float) + trees_.size() * sizeof(BucketTree) <= kNearCacheBytes;
  }

  // Prefetches the memory that Find reads first for a feature id, and Search for a position.
  __attribute__((always_inline)) void PrefetchId(int64_t feature_id) const {
    features_.Prefetch(feature_id);
  }
  __attribute__((always_inline)) void PrefetchFeature(int64_t f) const {
    __builtin_prefetch(&trees_[f]);
  }

 private:
  // How many more buckets than boundaries a feature has.
  static int64_t ExtraBuckets(MissingPolicy missing) {
    return missing == MissingPolicy::kBucket ? 2 : 1;
  }

  void Search(Side side, const int32_t* f, const float* values, int64_t n, int64_t extra,
              int64_t* out) const {
    const BucketKernels& kernels = GetBucketKernels();
    (side == Side::kLeft ? kernels.left : kernels.right)(trees_.data(), lines_.data(), f, values, n,
                                                         cached(), extra, out);
  }

  void BuildTrees(Span<const float> boundaries, Span<const int64_t> splits);

  FeatureIndex features_;
  std::vector<BucketTree> trees_ = {BucketTree{}};  // one per feature, and one past the last
  std::vector<float> lines_;                        // the nodes of all trees
};

// The memory for the output entries. `ids` is null if it could not be allocated; the function then
// writes nothing and returns OK, and the caller reports the error.
struct EntriesOutput {
  int64_t* ids;
  float* values;
};
using AllocateEntries = std::function<EntriesOutput(int64_t number)>;

// Maps entries to (offset(feature) + bucket, 1). The num_buckets ids are followed by one id for
// each adapted feature if inputs are kept, and then by a space of 2^pass_through_bits ids for
// entries that are passed through. row_splits_out has the length of the batch's row_splits. The
// order of entries is kept.
template <class Id>
Status PercentileDiscretize(const Csr<Id>& batch, const Buckets& buckets,
                            const DiscretizeOptions& options, int64_t pass_through_bits,
                            const ParallelFor& parallel_for, const AllocateEntries& allocate,
                            int64_t* row_splits_out);

// Maps entries to (hash of (feature id, bucket), 1), where the hash has output_bits bits. Entries
// that are passed through or kept get the hash of their feature id alone. The id of a bucket does
// not depend on other features.
template <class Id>
Status HashingDiscretize(const Csr<Id>& batch, const Buckets& buckets,
                         const DiscretizeOptions& options, int64_t output_bits,
                         const ParallelFor& parallel_for, const AllocateEntries& allocate,
                         int64_t* row_splits_out);

// The ids of PercentileDiscretize and of HashingDiscretize.
enum class BucketIds { kContiguous, kHashed };

// Whether a call may return another number of entries than it gets.
inline bool ChangesNumberOfEntries(const DiscretizeOptions& options) {
  return options.missing == MissingPolicy::kDrop || options.unknown == UnknownPolicy::kDrop ||
         options.keep_inputs;
}

// Memory of DiscretizeSerially for n entries: `out` has n entries, and 2 n if inputs are kept.
// `all` has n entries and is needed if the number of entries may change, `kept` [n] if inputs are
// kept.
struct DiscretizeMemory {
  EntriesOutput out;
  EntriesOutput all = {nullptr, nullptr};
  int64_t* kept = nullptr;
};

// PercentileDiscretize or HashingDiscretize on the calling thread, without memory of its own. The
// batch must be valid, and `bits` in range.
Status DiscretizeSerially(const Csr<int64_t>& batch, const Buckets& buckets,
                          const DiscretizeOptions& options, BucketIds kind, int bits,
                          const DiscretizeMemory& memory, int64_t* row_splits_out);

}  // namespace twml

#endif  // TWML_CORE_DISCRETIZE_H_
