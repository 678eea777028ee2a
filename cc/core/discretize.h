// Continuous features to buckets: (feature, value) becomes (id of the bucket, 1).
#ifndef TWML_CORE_DISCRETIZE_H_
#define TWML_CORE_DISCRETIZE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/core/csr.h"
#include "cc/core/hash.h"
#include "cc/core/keyed_hash.h"
#include "cc/core/parallel.h"
#include "cc/core/simd/bucket_kernels.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// kLeft: bucket = #{boundaries < v}, intervals (a, b]; kRight: #{boundaries <= v}, [a, b).
// As numpy.searchsorted. -Inf and Inf are values like any other.
enum class Side { kLeft, kRight };
// A NaN gets a bucket of its feature's own, or its entry is dropped.
enum class Missing { kBucket, kDrop };
// An entry of a feature without boundaries keeps its value (even a NaN that is not dropped as
// missing) at an id hashed from the feature, is dropped, or the batch is refused.
enum class Unknown { kPass, kDrop, kError };

struct DiscretizeOptions {
  Side side = Side::kLeft;
  Missing missing = Missing::kBucket;
  Unknown unknown = Unknown::kPass;
  // Behind its bucket, an entry of an adapted feature that is not NaN stays as it is, at an id for
  // that; others appear once at most, as without.
  bool keep_inputs = false;
};

// The boundaries of the adapted features, checked and indexed: made once, used for many batches.
// Owns all it needs.
class Buckets {
 public:
  // Feature f = feature_ids[f] (any int64, strictly ascending) has the boundaries
  // [splits[f], splits[f + 1]), which do not fall and hold no NaN. n boundaries make n + 1 buckets.
  static Status Make(Span<const int64_t> feature_ids, Span<const float> boundaries,
                     Span<const int64_t> splits, const ParallelFor& parallel_for, Buckets* buckets);

  int64_t num_features() const { return static_cast<int64_t>(trees_.size()) - 1; }
  int64_t num_boundaries() const { return trees_.back().begin; }
  int64_t num_boundaries(int64_t f) const { return trees_[f].count; }

  // Ids in use when features are laid out one after the other, each with its missing bucket last.
  int64_t num_buckets(Missing missing) const { return offset(num_features(), missing); }
  int64_t offset(int64_t f, Missing missing) const {
    return trees_[f].begin + f * ExtraBuckets(missing);
  }

  // f[i] = that of the feature ids[i], or num_features() where there is none; whether all have one.
  template <class Id>
  bool Find(const Id* ids, int64_t n, int32_t* f) const {
    if (slots_.empty()) {
      const BucketKernels& kernels = KernelsOfBuckets();
      const DenseFeatures features = {
          dense_.empty() ? nullptr : dense_.data(), first_feature_,
          dense_.empty() ? static_cast<uint64_t>(num_features()) : dense_.size(),
          static_cast<int32_t>(num_features())};
      if constexpr (sizeof(Id) == sizeof(int32_t)) {
        return kernels.features_of_int32(features, ids, n, f);
      } else {
        return kernels.features_of_int64(features, ids, n, f);
      }
    }
    bool all = true;
    for (int64_t i = 0; i < n; ++i) {
      f[i] = FindSlot(ids[i]);
      all &= f[i] < num_features();
    }
    return all;
  }

  // bucket[i] = the bucket of values[i] (0 for a NaN) among those of f[i], for n entries. Where
  // there is no feature at all, the place where the last one ends has no boundaries.
  void Search(Side side, const int32_t* f, const float* values, int64_t n, int64_t* bucket) const {
    Search(side, f, values, n, -1, bucket);
  }
  // offset(f[i], missing) on top.
  void SearchIds(Side side, Missing missing, const int32_t* f, const float* values, int64_t n,
                 int64_t* ids) const {
    Search(side, f, values, n, ExtraBuckets(missing), ids);
  }

  // Whether asking ahead does not pay.
  bool cached() const {
    constexpr size_t kNear = 1 << 18;
    return lines_.size() * sizeof(float) + trees_.size() * sizeof(BucketTree) <= kNear;
  }

  // What Find and Search will read first of an id and of an f.
  __attribute__((always_inline)) void PrefetchId(int64_t feature) const {
    const uint64_t at = static_cast<uint64_t>(feature) - static_cast<uint64_t>(first_feature_);
    if (!slots_.empty()) {
      __builtin_prefetch(&slots_[hash_(feature) & mask_]);
    } else if (at < dense_.size()) {
      __builtin_prefetch(&dense_[at]);
    }
  }
  __attribute__((always_inline)) void PrefetchFeature(int64_t f) const {
    __builtin_prefetch(&trees_[f]);
  }

  // The f of a feature id, or -1.
  int64_t Find(int64_t feature) const {
    int32_t f;
    return Find(&feature, 1, &f) ? f : -1;
  }

 private:
  struct Slot {
    int64_t feature;
    int64_t f;
  };

  // What a feature has more buckets than boundaries.
  static int64_t ExtraBuckets(Missing missing) { return missing == Missing::kBucket ? 2 : 1; }

  void Search(Side side, const int32_t* f, const float* values, int64_t n, int64_t extra,
              int64_t* out) const {
    const BucketKernels& kernels = KernelsOfBuckets();
    (side == Side::kLeft ? kernels.left : kernels.right)(trees_.data(), lines_.data(), f, values, n,
                                                         cached(), extra, out);
  }

  int32_t FindSlot(int64_t feature) const {
    for (uint64_t at = hash_(feature);; ++at) {
      const Slot& slot = slots_[at & mask_];
      if (slot.f < 0) return static_cast<int32_t>(num_features());
      if (slot.feature == feature) return static_cast<int32_t>(slot.f);
    }
  }

  void Index(Span<const int64_t> feature_ids);

  void Plant(Span<const float> boundaries, Span<const int64_t> splits);

  std::vector<BucketTree> trees_ = {BucketTree{}};  // one a feature, and where the last one ends
  std::vector<float> lines_;
  // Ids that follow each other are their positions, others close together are looked up by
  // position, the rest in an open-addressing table.
  int64_t first_feature_ = 0;
  std::vector<int32_t> dense_;
  KeyedHash hash_;
  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
};

// Where the entries that stay go, once their number is known; null where they cannot be allocated
// (the caller knows), and nothing is written.
struct EntriesOut {
  int64_t* ids;
  float* values;
};
using AllocateEntries = std::function<EntriesOut(int64_t number)>;

// Entries become (offset(feature) + bucket, 1); behind the num_buckets ids, if inputs are kept,
// comes one for each adapted feature, and then the pass-through space of 2^pass_through_bits.
// row_splits_out: as long as the batch's. Order is kept.
template <class Id>
Status PercentileDiscretize(const Csr<Id>& batch, const Buckets& buckets,
                            const DiscretizeOptions& options, int64_t pass_through_bits,
                            const ParallelFor& parallel_for, const AllocateEntries& allocate,
                            int64_t* row_splits_out);

// Entries become (hash of (feature id, bucket), 1), the hash reduced to output_bits; passed and
// kept entries the hash of their feature id alone. A bucket's id depends on no other feature.
template <class Id>
Status HashingDiscretize(const Csr<Id>& batch, const Buckets& buckets,
                         const DiscretizeOptions& options, int64_t output_bits,
                         const ParallelFor& parallel_for, const AllocateEntries& allocate,
                         int64_t* row_splits_out);

}  // namespace twml

#endif  // TWML_CORE_DISCRETIZE_H_
