#include "cc/core/feature_index.h"

#include <algorithm>

namespace twml {

FeatureIndex::FeatureIndex(Span<const int64_t> feature_ids) : size_(feature_ids.size()) {
  // An array may have this many items per feature, or kSmallRange items in any case.
  constexpr uint64_t kMaxItemsPerFeature = 8;
  constexpr uint64_t kSmallRange = 1 << 12;
  if (size_ == 0) return;
  first_ = feature_ids[0];
  const auto offset = [this](int64_t id) {
    return static_cast<uint64_t>(id) - static_cast<uint64_t>(first_);
  };
  const uint64_t last = offset(feature_ids[size_ - 1]);
  if (last == static_cast<uint64_t>(size_) - 1) return;
  if (last < std::max(kSmallRange, kMaxItemsPerFeature * static_cast<uint64_t>(size_))) {
    dense_.assign(last + 1, static_cast<int32_t>(size_));
    for (int64_t f = 0; f < size_; ++f) {
      dense_[offset(feature_ids[f])] = static_cast<int32_t>(f);
    }
    return;
  }
  hashed_ = true;
  index_.Reserve(size_);
  for (const int64_t id : feature_ids) index_.FindOrAdd(id);
}

}  // namespace twml
