// Compiled once per SIMD level, like row_kernels.cc, and under the same restrictions.
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "cc/core/simd_buckets.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

// How many of the 16 floats at `line` are before v, times 16; a NaN among them never is.
static_assert(kBucketLine == 16);
template <bool kRight>
inline int64_t CountTimes16(const float* line, float v) {
#if defined(__AVX512F__)
  constexpr int kBefore = kRight ? _CMP_LE_OQ : _CMP_LT_OQ;
  const __m512 key = _mm512_set1_ps(v);
  return int64_t{16} * __builtin_popcount(_mm512_cmp_ps_mask(_mm512_loadu_ps(line), key, kBefore));
#elif defined(__AVX2__)
  constexpr int kBefore = kRight ? _CMP_LE_OQ : _CMP_LT_OQ;
  const __m256 key = _mm256_set1_ps(v);
  const __m256i low = _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(line), key, kBefore));
  const __m256i high = _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(line + 8), key, kBefore));
  // Two bits of each float, in any order.
  const int mask = _mm256_movemask_epi8(_mm256_packs_epi32(low, high));
  return int64_t{8} * __builtin_popcount(static_cast<unsigned>(mask));
#else
  int64_t count = 0;
  for (int i = 0; i < kBucketLine; ++i) count += kRight ? line[i] <= v : line[i] < v;
  return 16 * count;
#endif
}

// The float, counted from the first leaf, at which the line of leaves to look at begins.
template <bool kRight>
inline int64_t FindLeaf(const BucketTree& tree, const float* lines, float v) {
  const float* level = lines + tree.line * kBucketLine;
  int64_t at = CountTimes16<kRight>(level, v);
  for (int above = tree.levels - 2; above > 0; --above) {  // rare: more than 272 boundaries
    level += kBucketLine * LinesOfLevel(tree.count, above + 1);
    at = kBucketLine * at + CountTimes16<kRight>(level + at, v);
  }
  return at;
}

// The bucket, from where FindLeaf has led to.
template <bool kRight>
inline int64_t FindInLeaf(const BucketTree& tree, const float* lines, int64_t leaf, float v) {
  return leaf + CountTimes16<kRight>(lines + tree.leaves + leaf, v) / kBucketLine;
}

inline bool AllEqual(const int32_t* f, int64_t n) {
  int32_t differences = 0;
  for (int64_t i = 0; i < n; ++i) differences |= f[i] ^ f[0];
  return differences == 0;
}

template <bool kRight>
void FindBuckets(const BucketTree* trees, const float* lines, const int32_t* f, const float* values,
                 int64_t n, bool cached, int64_t extra, int64_t* out) {
  const int64_t per_boundary = extra >= 0, per_feature = extra >= 0 ? extra : 0;
  const auto before = [&](int32_t of) { return trees[of].begin * per_boundary + of * per_feature; };
  if (n > 0 && AllEqual(f, n)) {
    const BucketTree tree = trees[f[0]];
    const int64_t start = before(f[0]);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t leaf = FindLeaf<kRight>(tree, lines, values[i]);
      out[i] = start + FindInLeaf<kRight>(tree, lines, leaf, values[i]);
    }
    return;
  }
  if (cached) {
    for (int64_t i = 0; i < n; ++i) {
      const BucketTree& tree = trees[f[i]];
      const int64_t leaf = FindLeaf<kRight>(tree, lines, values[i]);
      out[i] = before(f[i]) + FindInLeaf<kRight>(tree, lines, leaf, values[i]);
    }
    return;
  }
  // All entries take each step together, so that the cache misses of many overlap.
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
    out[i] = before(f[i]) + FindInLeaf<kRight>(trees[f[i]], lines, out[i], values[i]);
  }
}

template <class Id>
bool FindFeatures(const DenseFeatures& features, const Id* ids, int64_t n, int32_t* f) {
  const uint64_t first = static_cast<uint64_t>(features.first), size = features.size;
  const int32_t none = features.none;
  const int32_t* dense = features.dense;
  const auto position = [first](Id id) {
    return static_cast<uint64_t>(static_cast<int64_t>(id)) - first;
  };
  if (dense == nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t at = position(ids[i]);
      f[i] = at < size ? static_cast<int32_t>(at) : none;
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t at = position(ids[i]);
      f[i] = at < size ? dense[at] : none;
    }
  }
  bool all = true;
  for (int64_t i = 0; i < n; ++i) all &= f[i] != none;
  return all;
}

}  // namespace

extern const BucketKernels kBucketKernels;
const BucketKernels kBucketKernels = {FindBuckets<false>, FindBuckets<true>, FindFeatures<int32_t>,
                                      FindFeatures<int64_t>};

}  // namespace twml::TWML_SIMD_LEVEL
