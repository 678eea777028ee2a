// Kernels that find features and buckets for many values at a time, compiled once per SIMD level.
#ifndef TWML_CORE_SIMD_BUCKET_KERNELS_H_
#define TWML_CORE_SIMD_BUCKET_KERNELS_H_

#include <cstdint>

namespace twml {

constexpr int64_t kBucketLine = 16;  // floats per cache line

// A feature's boundaries as a static search tree whose nodes are lines of 16 floats, padded with
// NaN. The leaves hold the boundaries in order. Each level above holds the last value of every line
// of the level below except the last line, so the rank of a value in one level is the index of the
// line to search in the next. The top level is a single line. A feature with only one line of
// leaves has a line of NaN as its top level, so all small trees are searched in the same way.
struct BucketTree {
  int64_t begin;   // index of the feature's first boundary among the boundaries of all features
  int64_t leaves;  // index of the first float of the leaves
  int64_t line;    // index of the top level's line; the lower levels and the leaves follow it
  int32_t count;   // number of boundaries
  int32_t levels;  // number of levels, at least 2
};

// The number of lines in a level of a tree with `count` boundaries. Level 0 are the leaves.
__attribute__((always_inline)) inline int64_t LinesOfLevel(int64_t count, int level) {
  int64_t lines = (count + kBucketLine - 1) / kBucketLine;
  for (int i = 0; i < level; ++i) lines = (lines - 1 + kBucketLine - 1) / kBucketLine;
  return lines;
}

// Positions of feature ids that are close together. The feature with id `first` + i has the
// position dense[i], or i if `dense` is null. Ids without a feature have the position `none`.
struct DenseFeatures {
  const int32_t* dense;
  int64_t first;
  uint64_t size;
  int32_t none;
};

// Writes the position of the feature ids[i] to f[i]. Returns whether all ids have a feature.
template <class Id>
using FindFeatures = bool (*)(const DenseFeatures& features, const Id* ids, int64_t n, int32_t* f);

// Writes to out[i] the number of boundaries of feature f[i] that are < values[i] (left) or <=
// values[i] (right); 0 for a NaN. With extra >= 0, the number of buckets of all earlier features is
// added, where each feature has `extra` more buckets than boundaries.
// `cached`: whether all trees fit into a near cache, so that prefetching does not pay off.
using FindBuckets = void (*)(const BucketTree* trees, const float* lines, const int32_t* f,
                             const float* values, int64_t n, bool cached, int64_t extra,
                             int64_t* out);
struct BucketKernels {
  FindBuckets left, right;
  FindFeatures<int32_t> features_of_int32;
  FindFeatures<int64_t> features_of_int64;
};

}  // namespace twml

#endif  // TWML_CORE_SIMD_BUCKET_KERNELS_H_
