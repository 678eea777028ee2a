#include "cc/core/discretize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cc/core/first_position.h"
#include "cc/core/huge_pages.h"
#include "cc/core/scratch.h"

namespace twml {
namespace {

// Bucket numbers that are hashed for entries without a regular bucket. They do not depend on the
// number of boundaries, so the hashed ids stay the same when a feature is adapted again.
constexpr int64_t kMissingBucket = -1;
constexpr int64_t kPassThroughBucket = -2;

constexpr int64_t kDropped = -1;  // the id of an entry that is removed

// Ids of PercentileDiscretize.
class ContiguousIds {
 public:
  ContiguousIds(const Buckets& buckets, const DiscretizeOptions& options, int bits)
      : buckets_(buckets),
        missing_(options.missing),
        bits_(bits),
        first_kept_id_(buckets.num_buckets(missing_)),
        first_passed_id_(first_kept_id_ + (options.keep_inputs ? buckets.num_features() : 0)) {}
  template <class Id>
  void FindBuckets(Side side, const Id* /*features*/, const int32_t* f, const float* values,
                   int64_t n, int64_t* out) const {
    buckets_.SearchIds(side, missing_, f, values, n, out);
  }
  int64_t MissingBucketId(int64_t /*feature*/, int64_t f) const {
    return buckets_.offset(f, missing_) + buckets_.num_boundaries(f) + 1;
  }
  int64_t KeptInputId(int64_t /*feature*/, int64_t f) const { return first_kept_id_ + f; }
  int64_t PassThroughId(int64_t feature) const {
    return first_passed_id_ + ReduceToBits(HashPair(feature, kPassThroughBucket), bits_);
  }

 private:
  const Buckets& buckets_;
  const MissingPolicy missing_;
  const int bits_;
  const int64_t first_kept_id_, first_passed_id_;
};

// Ids of HashingDiscretize.
class HashedIds {
 public:
  HashedIds(const Buckets& buckets, int bits) : buckets_(buckets), bits_(bits) {}
  template <class Id>
  void FindBuckets(Side side, const Id* features, const int32_t* f, const float* values, int64_t n,
                   int64_t* out) const {
    buckets_.Search(side, f, values, n, out);
    for (int64_t i = 0; i < n; ++i) out[i] = Hash(features[i], out[i]);
  }
  int64_t MissingBucketId(int64_t feature, int64_t /*f*/) const {
    return Hash(feature, kMissingBucket);
  }
  int64_t PassThroughId(int64_t feature) const { return Hash(feature, kPassThroughBucket); }
  int64_t KeptInputId(int64_t feature, int64_t /*f*/) const { return PassThroughId(feature); }

 private:
  int64_t Hash(int64_t feature, int64_t bucket) const {
    return ReduceToBits(HashPair(feature, bucket), bits_);
  }

  const Buckets& buckets_;
  const int bits_;
};

// Entries that are processed together, so that their cache misses overlap.
constexpr int64_t kBlock = 64;

// Discretizes the entries [begin, end) into `out`; dropped entries get the id kDropped. Unless
// `kept` is null, kept[k] becomes the id at which the input of entry k is repeated, or kDropped.
// Returns the first entry with an unknown feature if that is an error, and `end` otherwise.
template <class Id, class Ids>
int64_t DiscretizeRange(const Csr<Id>& batch, const Buckets& buckets,
                        const DiscretizeOptions& options, const Ids& ids, int64_t begin,
                        int64_t end, EntriesOutput out, int64_t* kept) {
  int32_t f[kBlock];
  float ones[kBlock];
  std::fill_n(ones, kBlock, 1.0f);
  const bool cached = buckets.cached();
  const int32_t none = static_cast<int32_t>(buckets.num_features());
  for (; begin < end; begin += kBlock) {
    const int64_t n = std::min(kBlock, end - begin);
    const Id* features = &batch.ids[begin];
    const float* values = batch.binary ? ones : &batch.values[begin];
    int64_t* out_ids = out.ids + begin;
    float* out_values = out.values + begin;
    for (int64_t i = 0; !cached && i < n; ++i) buckets.PrefetchId(features[i]);
    const bool all_known = buckets.Find(features, n, f);
    for (int64_t i = 0; !cached && i < n; ++i) buckets.PrefetchFeature(f[i]);
    uint32_t missing_values = 0;  // as wide as a float, which lets the compiler vectorize
    for (int64_t i = 0; i < n; ++i) missing_values += values[i] != values[i];
    ids.FindBuckets(options.side, features, f, values, n, out_ids);
    std::fill_n(out_values, n, 1.0f);
    for (int64_t i = 0; kept != nullptr && i < n; ++i) {
      const bool keep = f[i] != none && !std::isnan(values[i]);
      kept[begin + i] = keep ? ids.KeptInputId(features[i], f[i]) : kDropped;
    }
    if (all_known && missing_values == 0) continue;
    for (int64_t i = 0; i < n; ++i) {
      const bool missing = std::isnan(values[i]);
      if (f[i] == none) {
        if (options.unknown == UnknownPolicy::kError) return begin + i;
        out_ids[i] =
            options.unknown == UnknownPolicy::kDrop ? kDropped : ids.PassThroughId(features[i]);
        out_values[i] = values[i];
      } else if (missing) {
        out_ids[i] = ids.MissingBucketId(features[i], f[i]);
      }
      if (missing && options.missing == MissingPolicy::kDrop) out_ids[i] = kDropped;
    }
  }
  return end;
}

// The number of entries of row b of the result.
template <class Id>
int64_t CompactSize(const Csr<Id>& batch, EntriesOutput all, const int64_t* kept_ids, int64_t b) {
  int64_t kept = 0;
  for (int64_t k = batch.row_splits[b]; k < batch.row_splits[b + 1]; ++k) {
    kept += all.ids[k] != kDropped;
    if (kept_ids != nullptr) kept += kept_ids[k] != kDropped;
  }
  return kept;
}

// Removes dropped entries of row b and inserts the kept inputs after their buckets.
template <class Id>
void CompactRow(const Csr<Id>& batch, EntriesOutput all, const int64_t* kept_ids, int64_t b,
                int64_t at, EntriesOutput out) {
  for (int64_t k = batch.row_splits[b]; k < batch.row_splits[b + 1]; ++k) {
    if (all.ids[k] != kDropped) {
      out.ids[at] = all.ids[k];
      out.values[at++] = all.values[k];
    }
    if (kept_ids != nullptr && kept_ids[k] != kDropped) {
      out.ids[at] = kept_ids[k];
      out.values[at++] = batch.binary ? 1.0f : batch.values[k];
    }
  }
}

template <class Id>
void CompactRows(const Csr<Id>& batch, EntriesOutput all, const int64_t* kept_ids,
                 const ParallelFor& parallel_for, const AllocateEntries& allocate,
                 int64_t* row_splits_out) {
  const int64_t rows = batch.num_rows();
  const int64_t cost = 1 + (rows > 0 ? batch.num_entries() / rows : 0);
  parallel_for(rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      row_splits_out[b + 1] = CompactSize(batch, all, kept_ids, b);
    }
  });
  row_splits_out[0] = 0;
  for (int64_t b = 0; b < rows; ++b) row_splits_out[b + 1] += row_splits_out[b];
  const EntriesOutput out = allocate(row_splits_out[rows]);
  if (out.ids == nullptr) return;  // no entries are left, or allocation failed
  parallel_for(rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      CompactRow(batch, all, kept_ids, b, row_splits_out[b], out);
    }
  });
}

template <class Id>
Status UnknownFeature(const Csr<Id>& batch, const Buckets& buckets, int64_t k) {
  return Invalid("ids[", k, "] = ", static_cast<int64_t>(batch.ids[k]), " is not one of the ",
                 buckets.num_features(), " adapted features");
}

template <class Id, class Ids>
Status Discretize(const Csr<Id>& batch, const Buckets& buckets, const DiscretizeOptions& options,
                  const Ids& ids, const ParallelFor& parallel_for, const AllocateEntries& allocate,
                  int64_t* row_splits_out) {
  TWML_RETURN_IF_ERROR(CheckCsrShape(batch));
  const int64_t n = batch.num_entries();
  const bool changes_size = ChangesNumberOfEntries(options);
  Scratch<int64_t> kept(options.keep_inputs ? n : 0);
  Scratch<int64_t> scratch_ids(changes_size ? n : 0);
  Scratch<float> scratch_values(changes_size ? n : 0);
  const EntriesOutput all =
      changes_size ? EntriesOutput{scratch_ids.data(), scratch_values.data()} : allocate(n);
  if (n > 0 && all.ids == nullptr) return Status();
  FirstPosition unknown;
  parallel_for(n, 8, [&](int64_t begin, int64_t end) {
    const int64_t stop =
        DiscretizeRange(batch, buckets, options, ids, begin, end, all, kept.data());
    if (stop < end) unknown.Record(stop);
  });
  if (unknown.found()) return UnknownFeature(batch, buckets, unknown.value());
  if (changes_size) {
    CompactRows(batch, all, kept.data(), parallel_for, allocate, row_splits_out);
  } else {
    std::copy(batch.row_splits.begin(), batch.row_splits.end(), row_splits_out);
  }
  return Status();
}

template <class Ids>
Status DiscretizeOnThisThread(const Csr<int64_t>& batch, const Buckets& buckets,
                              const DiscretizeOptions& options, const Ids& ids,
                              const DiscretizeMemory& memory, int64_t* row_splits_out) {
  const bool changes_size = ChangesNumberOfEntries(options);
  const EntriesOutput all = changes_size ? memory.all : memory.out;
  const int64_t n = batch.num_entries(), rows = batch.num_rows();
  const int64_t stop = DiscretizeRange(batch, buckets, options, ids, 0, n, all, memory.kept);
  if (stop < n) return UnknownFeature(batch, buckets, stop);
  if (!changes_size) {
    std::copy(batch.row_splits.begin(), batch.row_splits.end(), row_splits_out);
    return Status();
  }
  row_splits_out[0] = 0;
  for (int64_t b = 0; b < rows; ++b) {
    row_splits_out[b + 1] = row_splits_out[b] + CompactSize(batch, all, memory.kept, b);
    CompactRow(batch, all, memory.kept, b, row_splits_out[b], memory.out);
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
  if (feature_ids.size() >= INT32_MAX) {
    return Invalid("feature_ids must have fewer than ", INT32_MAX, " items, got ",
                   feature_ids.size());
  }
  FirstPosition bad_feature, bad_split, bad_boundary;
  parallel_for(feature_ids.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      if (f > 0 && feature_ids[f] <= feature_ids[f - 1]) bad_feature.Record(f);
      const uint64_t count =
          static_cast<uint64_t>(splits[f + 1]) - static_cast<uint64_t>(splits[f]);
      if (splits[f + 1] < splits[f] || count > INT32_MAX) bad_split.Record(f + 1);
    }
  });
  if (bad_feature.found()) {
    const int64_t f = bad_feature.value();
    return Invalid("feature_ids must be strictly increasing: feature_ids[", f,
                   "] = ", feature_ids[f], " after ", feature_ids[f - 1]);
  }
  if (bad_split.found()) {
    const int64_t f = bad_split.value();
    return Invalid("boundary_splits must be non-decreasing: boundary_splits[", f, "] = ", splits[f],
                   " after ", splits[f - 1]);
  }
  // Non-decreasing splits from 0 to the number of boundaries are all in range.
  const int64_t cost = 1 + boundaries.size() / splits.size();
  parallel_for(feature_ids.size(), cost, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      for (int64_t i = splits[f]; i < splits[f + 1]; ++i) {
        const bool decreasing = i > splits[f] && !(boundaries[i] >= boundaries[i - 1]);
        if (decreasing || std::isnan(boundaries[i])) return bad_boundary.Record(i);
      }
    }
  });
  if (bad_boundary.found()) {
    const int64_t i = bad_boundary.value();
    if (std::isnan(boundaries[i])) return Invalid("boundaries[", i, "] must not be nan");
    return Invalid("boundaries of one feature must be non-decreasing: boundaries[", i,
                   "] = ", boundaries[i], " after ", boundaries[i - 1]);
  }
  buckets->BuildTrees(boundaries, splits);
  buckets->features_ = FeatureIndex(feature_ids);
  return Status();
}

void Buckets::BuildTrees(Span<const float> boundaries, Span<const int64_t> splits) {
  const int64_t features = splits.size() - 1;
  trees_.assign(features + 1, BucketTree{});
  // Line 0 holds only NaN: the leaves of features without boundaries and the top of small trees.
  int64_t line = 1;
  for (int64_t f = 0; f <= features; ++f) {
    BucketTree& tree = trees_[f];
    const int64_t count = f < features ? splits[f + 1] - splits[f] : 0;
    tree.begin = splits[f];
    tree.count = static_cast<int32_t>(count);
    tree.levels = 2;
    if (count == 0) continue;
    int64_t above = 0;
    if (count > kBucketLine) {
      tree.line = line;
      above = LinesOfLevel(count, 1);
      for (; LinesOfLevel(count, tree.levels - 1) > 1; ++tree.levels) {
        above += LinesOfLevel(count, tree.levels);
      }
    }
    tree.leaves = (line + above) * kBucketLine;
    line += above + LinesOfLevel(count, 0);
  }
  lines_.assign(line * kBucketLine, std::numeric_limits<float>::quiet_NaN());
  for (int64_t f = 0; f < features; ++f) {
    const BucketTree& tree = trees_[f];
    std::copy_n(boundaries.data() + tree.begin, tree.count, lines_.data() + tree.leaves);
    int64_t start = tree.leaves;
    for (int level = 1; tree.line > 0 && level < tree.levels; ++level) {
      const float* below = lines_.data() + start;
      start -= LinesOfLevel(tree.count, level) * kBucketLine;
      const int64_t pivots = LinesOfLevel(tree.count, level - 1) - 1;
      for (int64_t i = 0; i < pivots; ++i) lines_[start + i] = below[(i + 1) * kBucketLine - 1];
    }
  }
  HugePages().Advise(lines_.data(), static_cast<int64_t>(lines_.size() * sizeof(float)));
}

template <class Id>
Status PercentileDiscretize(const Csr<Id>& batch, const Buckets& buckets,
                            const DiscretizeOptions& options, int64_t pass_through_bits,
                            const ParallelFor& parallel_for, const AllocateEntries& allocate,
                            int64_t* row_splits_out) {
  TWML_RETURN_IF_ERROR(CheckHashBits(pass_through_bits, "pass_through_bits"));
  const ContiguousIds ids(buckets, options, static_cast<int>(pass_through_bits));
  return Discretize(batch, buckets, options, ids, parallel_for, allocate, row_splits_out);
}

template <class Id>
Status HashingDiscretize(const Csr<Id>& batch, const Buckets& buckets,
                         const DiscretizeOptions& options, int64_t output_bits,
                         const ParallelFor& parallel_for, const AllocateEntries& allocate,
                         int64_t* row_splits_out) {
  TWML_RETURN_IF_ERROR(CheckHashBits(output_bits, "output_bits"));
  const HashedIds ids(buckets, static_cast<int>(output_bits));
  return Discretize(batch, buckets, options, ids, parallel_for, allocate, row_splits_out);
}

Status DiscretizeSerially(const Csr<int64_t>& batch, const Buckets& buckets,
                          const DiscretizeOptions& options, BucketIds kind, int bits,
                          const DiscretizeMemory& memory, int64_t* row_splits_out) {
  if (kind == BucketIds::kHashed) {
    return DiscretizeOnThisThread(batch, buckets, options, HashedIds(buckets, bits), memory,
                                  row_splits_out);
  }
  return DiscretizeOnThisThread(batch, buckets, options, ContiguousIds(buckets, options, bits),
                                memory, row_splits_out);
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
