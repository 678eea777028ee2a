#include "cc/core/discretize.h"

#include <algorithm>
#include <cmath>

#include "cc/core/first_position.h"
#include "cc/core/scratch.h"

namespace twml {
namespace {

// Buckets that are not between boundaries, as the hash names them: unlike a number counted from the
// end, these stay when a feature is adapted again.
constexpr int64_t kMissingBucket = -1;
constexpr int64_t kPassedFeature = -2;

constexpr int64_t kDropped = -1;

// #{boundaries < v} or #{boundaries <= v}, in log2(n) steps without a branch to mispredict.
template <Side kSide>
int64_t CountBefore(Span<const float> boundaries, float v) {
  const auto before = [v](float boundary) {
    return kSide == Side::kLeft ? boundary < v : boundary <= v;
  };
  const float* base = boundaries.data();
  int64_t n = boundaries.size();
  if (n == 0) return 0;
  while (n > 1) {
    const int64_t half = n / 2;
    base += half * static_cast<int64_t>(before(base[half - 1]));
    n -= half;
  }
  return base - boundaries.data() + before(*base);
}

class ContiguousIds {
 public:
  ContiguousIds(const Buckets& buckets, Missing missing, int bits)
      : buckets_(buckets), missing_(missing), bits_(bits), end_(buckets.num_buckets(missing)) {}
  int64_t Bucket(int64_t /*feature*/, int64_t f, int64_t bucket) const {
    return buckets_.offset(f, missing_) + bucket;
  }
  int64_t MissingBucket(int64_t feature, int64_t f) const {
    return Bucket(feature, f, buckets_.boundaries(f).size() + 1);
  }
  int64_t Passed(int64_t feature) const {
    return end_ + ReduceToBits(HashPair(feature, kPassedFeature), bits_);
  }

 private:
  const Buckets& buckets_;
  const Missing missing_;
  const int bits_;
  const int64_t end_;
};

class HashedIds {
 public:
  explicit HashedIds(int bits) : bits_(bits) {}
  int64_t Bucket(int64_t feature, int64_t /*f*/, int64_t bucket) const {
    return ReduceToBits(HashPair(feature, bucket), bits_);
  }
  int64_t MissingBucket(int64_t feature, int64_t f) const {
    return Bucket(feature, f, kMissingBucket);
  }
  int64_t Passed(int64_t feature) const { return Bucket(feature, -1, kPassedFeature); }

 private:
  const int bits_;
};

// Writes the entries of [begin, end): id kDropped where one is dropped. Returns the first entry
// that must be refused, or `end`.
template <Side kSide, class Id, class Ids>
int64_t DiscretizeRange(const Csr<Id>& batch, const Buckets& buckets,
                        const DiscretizeOptions& options, const Ids& ids, int64_t begin,
                        int64_t end, EntriesOut out) {
  for (int64_t k = begin; k < end; ++k) {
    const int64_t feature = batch.ids[k];
    const float value = batch.binary ? 1.0f : batch.values[k];
    const int64_t f = buckets.Find(feature);
    const bool missing = std::isnan(value);
    out.values[k] = 1.0f;
    if (f < 0) {
      if (options.unknown == Unknown::kError) return k;
      out.ids[k] = options.unknown == Unknown::kDrop ? kDropped : ids.Passed(feature);
      out.values[k] = value;
    } else if (missing) {
      out.ids[k] = ids.MissingBucket(feature, f);
    } else {
      out.ids[k] = ids.Bucket(feature, f, CountBefore<kSide>(buckets.boundaries(f), value));
    }
    if (missing && options.missing == Missing::kDrop) out.ids[k] = kDropped;
  }
  return end;
}

// Closes the gaps that dropped entries leave.
template <class Id>
void Compact(const Csr<Id>& batch, EntriesOut all, const ParallelFor& parallel_for,
             const AllocateEntries& allocate, int64_t* row_splits_out) {
  const Span<const int64_t> splits = batch.row_splits;
  const int64_t rows = batch.num_rows();
  const int64_t cost = 1 + (rows > 0 ? batch.num_entries() / rows : 0);
  parallel_for(rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      int64_t kept = 0;
      for (int64_t k = splits[b]; k < splits[b + 1]; ++k) kept += all.ids[k] != kDropped;
      row_splits_out[b + 1] = kept;
    }
  });
  row_splits_out[0] = 0;
  for (int64_t b = 0; b < rows; ++b) row_splits_out[b + 1] += row_splits_out[b];
  const EntriesOut out = allocate(row_splits_out[rows]);
  if (out.ids == nullptr) return;  // none left, or no memory
  parallel_for(rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      int64_t at = row_splits_out[b];
      for (int64_t k = splits[b]; k < splits[b + 1]; ++k) {
        if (all.ids[k] == kDropped) continue;
        out.ids[at] = all.ids[k];
        out.values[at++] = all.values[k];
      }
    }
  });
}

template <class Id, class Ids>
Status Discretize(const Csr<Id>& batch, const Buckets& buckets, const DiscretizeOptions& options,
                  const Ids& ids, const ParallelFor& parallel_for, const AllocateEntries& allocate,
                  int64_t* row_splits_out) {
  TWML_RETURN_IF_ERROR(CheckCsrShape(batch));
  const int64_t n = batch.num_entries();
  const bool may_drop = options.missing == Missing::kDrop || options.unknown == Unknown::kDrop;
  Scratch<int64_t> scratch_ids(may_drop ? n : 0);
  Scratch<float> scratch_values(may_drop ? n : 0);
  const EntriesOut all =
      may_drop ? EntriesOut{scratch_ids.data(), scratch_values.data()} : allocate(n);
  if (n > 0 && all.ids == nullptr) return Status();
  FirstPosition refused;
  parallel_for(n, 15, [&](int64_t begin, int64_t end) {
    const auto run = options.side == Side::kLeft ? DiscretizeRange<Side::kLeft, Id, Ids>
                                                 : DiscretizeRange<Side::kRight, Id, Ids>;
    const int64_t stopped = run(batch, buckets, options, ids, begin, end, all);
    if (stopped < end) refused.Offer(stopped);
  });
  if (refused.found()) {
    return Invalid("ids[", refused.value(),
                   "] = ", static_cast<int64_t>(batch.ids[refused.value()]), " is not one of the ",
                   buckets.num_features(), " adapted features");
  }
  if (may_drop) {
    Compact(batch, all, parallel_for, allocate, row_splits_out);
  } else {
    std::copy(batch.row_splits.begin(), batch.row_splits.end(), row_splits_out);
  }
  return Status();
}

}  // namespace

Status Buckets::Make(Span<const int64_t> feature_ids, Span<const float> boundaries,
                     Span<const int64_t> splits, const ParallelFor& parallel_for,
                     Buckets* buckets) {
  if (splits.size() != feature_ids.size() + 1) {
    return Invalid("boundary_splits must have ", feature_ids.size() + 1,
                   " items, one more than feature_ids, got ", splits.size());
  }
  if (splits[0] != 0) return Invalid("boundary_splits[0] must be 0, got ", splits[0]);
  if (splits[splits.size() - 1] != boundaries.size()) {
    return Invalid("boundary_splits[", splits.size() - 1, "] must be the number of boundaries ",
                   boundaries.size(), ", got ", splits[splits.size() - 1]);
  }
  FirstPosition bad_feature, bad_split, bad_boundary;
  parallel_for(feature_ids.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      if (f > 0 && feature_ids[f] <= feature_ids[f - 1]) bad_feature.Offer(f);
      if (splits[f + 1] < splits[f]) bad_split.Offer(f + 1);
    }
  });
  if (bad_feature.found()) {
    const int64_t f = bad_feature.value();
    return Invalid("feature_ids must ascend: feature_ids[", f, "] = ", feature_ids[f], " after ",
                   feature_ids[f - 1]);
  }
  if (bad_split.found()) {
    const int64_t f = bad_split.value();
    return Invalid("boundary_splits must not fall: boundary_splits[", f, "] = ", splits[f],
                   " after ", splits[f - 1]);
  }
  // Splits that start at 0, do not fall and end at the size are all in range.
  const int64_t cost = 1 + boundaries.size() / splits.size();
  parallel_for(feature_ids.size(), cost, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      for (int64_t i = splits[f]; i < splits[f + 1]; ++i) {
        const bool falls = i > splits[f] && !(boundaries[i] >= boundaries[i - 1]);
        if (falls || std::isnan(boundaries[i])) return bad_boundary.Offer(i);
      }
    }
  });
  if (bad_boundary.found()) {
    const int64_t i = bad_boundary.value();
    if (std::isnan(boundaries[i])) return Invalid("boundaries[", i, "] must not be nan");
    return Invalid("boundaries of one feature must not fall: boundaries[", i, "] = ", boundaries[i],
                   " after ", boundaries[i - 1]);
  }
  buckets->boundaries_ = boundaries;
  buckets->splits_.assign(splits.begin(), splits.end());
  buckets->Index(feature_ids);
  return Status();
}

void Buckets::Index(Span<const int64_t> feature_ids) {
  constexpr uint64_t kMaxDenseSlack = 8;
  constexpr uint64_t kSmallRange = 1 << 12;
  dense_.clear();
  slots_.assign(1, {0, -1});
  mask_ = 0;
  const int64_t n = feature_ids.size();
  if (n == 0) return;
  first_feature_ = feature_ids[0];
  const uint64_t last =
      static_cast<uint64_t>(feature_ids[n - 1]) - static_cast<uint64_t>(first_feature_);
  if (last < std::max(kSmallRange, kMaxDenseSlack * static_cast<uint64_t>(n)) && n <= INT32_MAX) {
    dense_.assign(last + 1, -1);
    for (int64_t f = 0; f < n; ++f) {
      dense_[static_cast<uint64_t>(feature_ids[f]) - static_cast<uint64_t>(first_feature_)] =
          static_cast<int32_t>(f);
    }
    return;
  }
  uint64_t capacity = 2;
  while (capacity < 2 * static_cast<uint64_t>(n)) capacity *= 2;
  slots_.assign(capacity, {0, -1});
  mask_ = capacity - 1;
  for (int64_t f = 0; f < n; ++f) {
    uint64_t at = Mix64(static_cast<uint64_t>(feature_ids[f]));
    while (slots_[at & mask_].f >= 0) ++at;
    slots_[at & mask_] = {feature_ids[f], f};
  }
}

template <class Id>
Status PercentileDiscretize(const Csr<Id>& batch, const Buckets& buckets,
                            const DiscretizeOptions& options, int64_t pass_through_bits,
                            const ParallelFor& parallel_for, const AllocateEntries& allocate,
                            int64_t* row_splits_out) {
  TWML_RETURN_IF_ERROR(CheckHashBits(pass_through_bits, "pass_through_bits"));
  const ContiguousIds ids(buckets, options.missing, static_cast<int>(pass_through_bits));
  return Discretize(batch, buckets, options, ids, parallel_for, allocate, row_splits_out);
}

template <class Id>
Status HashingDiscretize(const Csr<Id>& batch, const Buckets& buckets,
                         const DiscretizeOptions& options, int64_t output_bits,
                         const ParallelFor& parallel_for, const AllocateEntries& allocate,
                         int64_t* row_splits_out) {
  TWML_RETURN_IF_ERROR(CheckHashBits(output_bits, "output_bits"));
  const HashedIds ids(static_cast<int>(output_bits));
  return Discretize(batch, buckets, options, ids, parallel_for, allocate, row_splits_out);
}

#define TWML_INSTANTIATE(Id)                                                                      \
  template Status PercentileDiscretize<Id>(const Csr<Id>&, const Buckets&,                        \
                                           const DiscretizeOptions&, int64_t, const ParallelFor&, \
                                           const AllocateEntries&, int64_t*);                     \
  template Status HashingDiscretize<Id>(const Csr<Id>&, const Buckets&, const DiscretizeOptions&, \
                                        int64_t, const ParallelFor&, const AllocateEntries&,      \
                                        int64_t*);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
