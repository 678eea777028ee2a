// The positions of sorted feature ids.
#ifndef TWML_CORE_FEATURE_INDEX_H_
#define TWML_CORE_FEATURE_INDEX_H_

#include <cstdint>
#include <vector>

#include "cc/core/id_index.h"
#include "cc/core/simd_dispatch.h"
#include "cc/core/span.h"

namespace twml {

// Maps each feature id (any int64) to its position among the strictly increasing ids that it was
// built from. Consecutive ids need no table, ids that are close together are looked up in an array,
// and all others in an IdIndex.
class FeatureIndex {
 public:
  FeatureIndex() = default;
  explicit FeatureIndex(Span<const int64_t> feature_ids);

  int64_t size() const { return size_; }

  // Writes the position of ids[i] to f[i], or size() if there is no such feature. Returns whether
  // all ids have a feature.
  template <class Id>
  bool Find(const Id* ids, int64_t n, int32_t* f) const {
    if (!hashed_) {
      const BucketKernels& kernels = GetBucketKernels();
      const DenseFeatures features = {dense_.empty() ? nullptr : dense_.data(), first_,
                                      static_cast<uint64_t>(dense_.empty() ? size_ : dense_size()),
                                      static_cast<int32_t>(size_)};
      if constexpr (sizeof(Id) == sizeof(int32_t)) {
        return kernels.features_of_int32(features, ids, n, f);
      } else {
        return kernels.features_of_int64(features, ids, n, f);
      }
    }
    bool all = true;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t position = index_.Find(ids[i]);
      f[i] = static_cast<int32_t>(position < 0 ? size_ : position);
      all &= position >= 0;
    }
    return all;
  }

  // Prefetches the memory that Find reads first for an id.
  __attribute__((always_inline)) void Prefetch(int64_t id) const {
    const uint64_t at = static_cast<uint64_t>(id) - static_cast<uint64_t>(first_);
    if (hashed_) {
      index_.Prefetch(index_.Hash(id));
    } else if (at < dense_.size()) {
      __builtin_prefetch(&dense_[at]);
    }
  }

 private:
  int64_t dense_size() const { return static_cast<int64_t>(dense_.size()); }

  int64_t size_ = 0;
  int64_t first_ = 0;           // the smallest id
  std::vector<int32_t> dense_;  // the position of each id from first_ on; empty if consecutive
  bool hashed_ = false;
  IdIndex index_;
};

}  // namespace twml

#endif  // TWML_CORE_FEATURE_INDEX_H_
