// This file is compiled once per SIMD level and has the same restrictions as row_kernels.cc.
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "cc/core/simd/bucket_kernels.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

// A line of 16 floats in vector registers.
static_assert(kBucketLine == 16);
#if defined(__AVX512F__)
struct Line {
  __m512 all;
};
inline Line Load(const float* from) { return {_mm512_loadu_ps(from)}; }
#elif defined(__AVX2__)
struct Line {
  __m256 low, high;
};
inline Line Load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
#else
struct Line {
  const float* all;
};
inline Line Load(const float* from) { return {from}; }
#endif

// Counts the floats of the line that are < v (<= v if kRight) and multiplies the count by
// kBitsPerMatch. A NaN in the line is never counted.
#if defined(__AVX512F__)
constexpr uint32_t kBitsPerMatch = 1;
#elif defined(__AVX2__)
constexpr uint32_t kBitsPerMatch = 2;
#else
constexpr uint32_t kBitsPerMatch = 1;
#endif
template <bool kRight>
inline uint32_t Count(const Line& line, float v) {
#if defined(__AVX512F__)
  constexpr int kBefore = kRight ? _CMP_LE_OQ : _CMP_LT_OQ;
  return __builtin_popcount(_mm512_cmp_ps_mask(line.all, _mm512_set1_ps(v), kBefore));
#elif defined(__AVX2__)
  constexpr int kBefore = kRight ? _CMP_LE_OQ : _CMP_LT_OQ;
  const __m256 key = _mm256_set1_ps(v);
  const __m256i low = _mm256_castps_si256(_mm256_cmp_ps(line.low, key, kBefore));
  const __m256i high = _mm256_castps_si256(_mm256_cmp_ps(line.high, key, kBefore));
  // Two bits for each float, in any order.
  const int mask = _mm256_movemask_epi8(_mm256_packs_epi32(low, high));
  return __builtin_popcount(static_cast<unsigned>(mask));
#else
  // In two loops: of one that adds the comparisons, g++ 12 for aarch64 makes negative counts.
  int32_t found[kBucketLine], count = 0;
  for (int i = 0; i < kBucketLine; ++i) found[i] = kRight ? line.all[i] <= v : line.all[i] < v;
  for (int i = 0; i < kBucketLine; ++i) count += found[i];
  return static_cast<uint32_t>(count);
#endif
}
template <bool kRight>
inline int64_t CountTimes16(const Line& line, float v) {
  return int64_t{16 / kBitsPerMatch} * Count<kRight>(line, v);
}

// The index, relative to the first leaf, at which the line of leaves that contains v begins.
template <bool kRight>
inline int64_t FindLeaf(const BucketTree& tree, const float* lines, float v) {
  const float* level = lines + tree.line * kBucketLine;
  int64_t at = CountTimes16<kRight>(Load(level), v);
  for (int above = tree.levels - 2; above > 0; --above) {  // only trees of more than 272 boundaries
    level += kBucketLine * LinesOfLevel(tree.count, above + 1);
    at = kBucketLine * at + CountTimes16<kRight>(Load(level + at), v);
  }
  return at;
}

// The bucket of v, given the result of FindLeaf.
template <bool kRight>
inline int64_t FindInLeaf(const BucketTree& tree, const float* lines, int64_t leaf, float v) {
  return leaf + CountTimes16<kRight>(Load(lines + tree.leaves + leaf), v) / kBucketLine;
}

constexpr int64_t kBlock = 64;

using Floats = float __attribute__((vector_size(32)));  // compiler vectors, available on any CPU
using Ints = int32_t __attribute__((vector_size(32)));
constexpr int64_t kLanes = 8;

// The results of FindLeaf for 2 * kLanes values of a tree with two levels: 16 times the number of
// pivots before each value.
template <bool kRight>
inline void FindLeaves(const float* pivots, int64_t n, const float* values, int32_t* leaves) {
  Floats a, b;
  __builtin_memcpy(&a, values, sizeof(a));
  __builtin_memcpy(&b, values + kLanes, sizeof(b));
  Ints before_a = {}, before_b = {};
  for (int64_t p = 0; p < n; ++p) {  // a true comparison is -1
    before_a -= kRight ? pivots[p] <= a : pivots[p] < a;
    before_b -= kRight ? pivots[p] <= b : pivots[p] < b;
  }
  before_a *= static_cast<int32_t>(kBucketLine);
  before_b *= static_cast<int32_t>(kBucketLine);
  __builtin_memcpy(leaves, &before_a, sizeof(before_a));
  __builtin_memcpy(leaves + kLanes, &before_b, sizeof(before_b));
}

// Finds the buckets of kBlock values of one feature, whose first id is `start`. Each step is a loop
// over the values, which the compiler can mostly vectorize.
template <bool kRight>
void FindBucketsOfOneFeature(const BucketTree& tree, const float* lines, const float* values,
                             int64_t start, int64_t* out) {
  int32_t leaf[kBlock];
  uint32_t in_leaf[kBlock];
  if (tree.levels == 2) {
    const float* top = lines + tree.line * kBucketLine;
    const int64_t pivots = LinesOfLevel(tree.count, 0) - 1;
    for (int64_t i = 0; i < kBlock; i += 2 * kLanes) {
      FindLeaves<kRight>(top, pivots, values + i, leaf + i);
    }
  } else {
    for (int64_t i = 0; i < kBlock; ++i) {
      leaf[i] = static_cast<int32_t>(FindLeaf<kRight>(tree, lines, values[i]));
    }
  }
  const float* leaves = lines + tree.leaves;
  for (int64_t i = 0; i < kBlock; ++i) {
    in_leaf[i] = Count<kRight>(Load(leaves + leaf[i]), values[i]);
  }
  for (int64_t i = 0; i < kBlock; ++i) {
    out[i] = start + (leaf[i] + static_cast<int32_t>(in_leaf[i] / kBitsPerMatch));
  }
}

inline bool AllEqual(const int32_t* f) {
  int32_t differences = 0;
  for (int64_t i = 0; i < kBlock; ++i) differences |= f[i] ^ f[0];
  return differences == 0;
}

template <bool kRight>
void FindBuckets(const BucketTree* trees, const float* lines, const int32_t* f, const float* values,
                 int64_t n, bool cached, int64_t extra, int64_t* out) {
  const int64_t begins = extra >= 0 ? -1 : 0, per_feature = extra >= 0 ? extra : 0;
  const auto first_id = [&](int64_t feature) {
    return (trees[feature].begin & begins) + feature * per_feature;
  };
  if (n == kBlock && AllEqual(f)) {
    return FindBucketsOfOneFeature<kRight>(trees[f[0]], lines, values, first_id(f[0]), out);
  }
  if (cached) {
    for (int64_t i = 0; i < n; ++i) {
      const BucketTree& tree = trees[f[i]];
      const int64_t leaf = FindLeaf<kRight>(tree, lines, values[i]);
      out[i] = first_id(f[i]) + FindInLeaf<kRight>(tree, lines, leaf, values[i]);
    }
    return;
  }
  // Each step is done for all entries before the next, so that their cache misses overlap.
  for (int64_t i = 0; i < n; ++i) {
    const BucketTree& tree = trees[f[i]];
    __builtin_prefetch(lines + (tree.line > 0 ? tree.line * kBucketLine : tree.leaves));
  }
  for (int64_t i = 0; i < n; ++i) {
    const BucketTree& tree = trees[f[i]];
    out[i] = FindLeaf<kRight>(tree, lines, values[i]);
    __builtin_prefetch(lines + tree.leaves + out[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i] = first_id(f[i]) + FindInLeaf<kRight>(trees[f[i]], lines, out[i], values[i]);
  }
}

template <class Id>
bool FindFeatures(const DenseFeatures& features, const Id* ids, int64_t n, int32_t* f) {
  const uint64_t first = static_cast<uint64_t>(features.first), last = features.size - 1;
  if (features.size == 0) {
    for (int64_t i = 0; i < n; ++i) f[i] = features.none;
    return n == 0;
  }
  const auto position = [first](Id id) {
    return static_cast<uint64_t>(static_cast<int64_t>(id)) - first;
  };
  // Loops without branches are vectorized. As sizes are below 2^63, position > last is equivalent
  // to a sign bit in one of these numbers.
  uint64_t outside = 0;
  for (int64_t i = 0; i < n; ++i) outside |= position(ids[i]) | (last - position(ids[i]));
  const bool all_inside = static_cast<int64_t>(outside) >= 0;
  if (all_inside && features.dense == nullptr) {
    for (int64_t i = 0; i < n; ++i) f[i] = static_cast<int32_t>(position(ids[i]));
    return true;
  }
  bool all = all_inside;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t at = position(ids[i]);
    if (at > last) {
      f[i] = features.none;
    } else {
      f[i] = features.dense == nullptr ? static_cast<int32_t>(at) : features.dense[at];
    }
    all &= f[i] != features.none;
  }
  return all;
}

}  // namespace

extern const BucketKernels kBucketKernels;
const BucketKernels kBucketKernels = {FindBuckets<false>, FindBuckets<true>, FindFeatures<int32_t>,
                                      FindFeatures<int64_t>};

}  // namespace twml::TWML_SIMD_LEVEL
