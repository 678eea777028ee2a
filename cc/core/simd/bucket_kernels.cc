// Compiled once per SIMD level, like row_kernels.cc, and under the same restrictions.
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "cc/core/simd_buckets.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

// How many of the 16 floats at `line` are before v; a NaN among them never is.
template <bool kRight>
inline int64_t CountLine(const float* line, float v) {
#if defined(__AVX512F__)
  const __m512 at = _mm512_loadu_ps(line), key = _mm512_set1_ps(v);
  return __builtin_popcount(_mm512_cmp_ps_mask(at, key, kRight ? _CMP_LE_OQ : _CMP_LT_OQ));
#elif defined(__AVX2__)
  const __m256 key = _mm256_set1_ps(v);
  constexpr int kBefore = kRight ? _CMP_LE_OQ : _CMP_LT_OQ;
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(line), key, kBefore));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(line + 8), key, kBefore));
  return __builtin_popcount(static_cast<unsigned>(low | high << 8));
#else
  int count = 0;
  for (int i = 0; i < kBucketLine; ++i) count += kRight ? line[i] <= v : line[i] < v;
  return count;
#endif
}

// The float at which the line of leaves to look at begins.
template <bool kRight>
inline int64_t FindLeaf(const BucketTree& tree, const float* lines, float v) {
  const float* level = lines + tree.line * kBucketLine;
  int64_t rank = CountLine<kRight>(level, v);
  for (int above = tree.levels - 2; above > 0; --above) {  // rare: more than 272 boundaries
    level += kBucketLine * LinesOfLevel(tree.count, above + 1);
    rank = kBucketLine * rank + CountLine<kRight>(level + kBucketLine * rank, v);
  }
  return tree.leaves + kBucketLine * rank;
}

template <bool kRight>
void FindBuckets(const BucketTree* trees, const float* lines, const int32_t* f, const float* values,
                 int64_t n, bool cached, int64_t* bucket) {
  if (cached) {
    for (int64_t i = 0; i < n; ++i) {
      const BucketTree& tree = trees[f[i]];
      const int64_t leaf = FindLeaf<kRight>(tree, lines, values[i]);
      bucket[i] = leaf - tree.leaves + CountLine<kRight>(lines + leaf, values[i]);
    }
    return;
  }
  // All entries take each step together, so that the cache misses of many overlap.
  for (int64_t i = 0; i < n; ++i) {
    const BucketTree& tree = trees[f[i]];
    __builtin_prefetch(lines + tree.line * kBucketLine);
    __builtin_prefetch(lines + tree.leaves);
  }
  for (int64_t i = 0; i < n; ++i) {
    bucket[i] = FindLeaf<kRight>(trees[f[i]], lines, values[i]);
    __builtin_prefetch(lines + bucket[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t inside = bucket[i] - trees[f[i]].leaves;
    bucket[i] = inside + CountLine<kRight>(lines + bucket[i], values[i]);
  }
}

}  // namespace

extern const BucketKernels kBucketKernels;
const BucketKernels kBucketKernels = {FindBuckets<false>, FindBuckets<true>};

}  // namespace twml::TWML_SIMD_LEVEL
