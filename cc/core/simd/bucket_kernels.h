// The search for the buckets of many values, compiled once per SIMD level.
#ifndef TWML_CORE_SIMD_BUCKET_KERNELS_H_
#define TWML_CORE_SIMD_BUCKET_KERNELS_H_

#include <cstdint>

namespace twml {

constexpr int64_t kBucketLine = 16;  // floats of a cache line

// A feature's boundaries as a tree of lines of 16, padded with NaN. The leaves are the boundaries
// in order; every level above has the last value of each line below but the last line's. So the
// rank of a value in one level is the line to look at in the next. The top level is one line; where
// there is only one line of leaves it is a line of NaN, so that all small trees are searched alike.
struct BucketTree {
  int64_t begin;   // the feature's first boundary among those of all features
  int64_t leaves;  // the first float of the leaves
  int64_t line;    // of the top level; the lower ones follow, and in the end the leaves
  int32_t count;   // of boundaries
  int32_t levels;  // at least 2
};

// Level 0: the leaves.
__attribute__((always_inline)) inline int64_t LinesOfLevel(int64_t count, int level) {
  int64_t lines = (count + kBucketLine - 1) / kBucketLine;
  for (int i = 0; i < level; ++i) lines = (lines - 1 + kBucketLine - 1) / kBucketLine;
  return lines;
}

// Ids close together: `dense` holds the f of each from `first` on, where it is not simply its
// position. What has none is `none`.
struct DenseFeatures {
  const int32_t* dense;  // or null
  int64_t first;
  uint64_t size;
  int32_t none;
};

// f[i] of ids[i]; whether all have one.
template <class Id>
using FindFeatures = bool (*)(const DenseFeatures& features, const Id* ids, int64_t n, int32_t* f);

// out[i] = the number of boundaries of feature f[i] (all >= 0) that are < values[i], or <= it;
// 0 for a NaN. With extra >= 0, on top of the number of buckets of the features before, each of
// which has `extra` more than boundaries.
// `cached`: all fits into a near cache, so that asking ahead does not pay.
using FindBuckets = void (*)(const BucketTree* trees, const float* lines, const int32_t* f,
                             const float* values, int64_t n, bool cached, int64_t extra,
                             int64_t* out);
struct BucketKernels {
  FindBuckets left, right;
  FindFeatures<int32_t> features_of_int32;
  FindFeatures<int64_t> features_of_int64;
};

// Of the level that Kernels() in simd.h chooses.
const BucketKernels& KernelsOfBuckets();

}  // namespace twml

#endif  // TWML_CORE_SIMD_BUCKET_KERNELS_H_
