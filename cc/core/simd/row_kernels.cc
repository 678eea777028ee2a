// This file is compiled once per SIMD level; TWML_SIMD_LEVEL is the name of the level's namespace.
// It must not instantiate a template or inline function that other files share: the linker keeps
// only one copy, which may use instructions that the CPU does not have. It therefore uses nothing
// of the standard library except the C math functions.
#include "cc/core/simd/row_kernels.h"

#include "cc/core/simd/lanes.h"
#include "cc/core/simd/update_loops.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

constexpr int64_t kNarrowAhead = 64;  // entries whose rows of at most one line are prefetched

// Calls SumBlock with the block size `block`, which is at most kBlock.
template <int kBlock, bool kBinary, class Id, class W>
void SumBlockOfSize(int block, const W* table, int64_t dim, int64_t last_offset, const Id* ids,
                    const float* values, int64_t n, int64_t readable, float* out) {
  if constexpr (kBlock > 1) {
    if (block < kBlock) {
      return SumBlockOfSize<kBlock - 1, kBinary>(block, table, dim, last_offset, ids, values, n,
                                                 readable, out);
    }
  }
  SumBlock<kBlock, kBinary>(table, dim, last_offset, ids, values, n, readable, out);
}

// Sums rows that are narrower than a vector, in vectors of half the lanes, a quarter, ... down to
// 4, or one column at a time.
template <bool kBinary, int kWidth, class Id, class W>
void SumNarrow(const W* table, int64_t dim, const Id* ids, const float* values, int64_t n,
               int64_t readable, float* out) {
  if constexpr (kWidth >= 4) {
    if (dim == kWidth) {
      return SumBlock<1, kBinary, kWidth>(table, dim, 0, ids, values, n, readable, out);
    }
    if (dim > kWidth) {
      return SumBlock<2, kBinary, kWidth>(table, dim, dim - kWidth, ids, values, n, readable, out);
    }
    return SumNarrow<kBinary, kWidth / 2>(table, dim, ids, values, n, readable, out);
  }
  float sum[kLanes] = {};
  for (int64_t k = 0; k < n; ++k) {
    if (k + kNarrowAhead < readable) __builtin_prefetch(table + ids[k + kNarrowAhead] * dim);
    const W* row = table + ids[k] * dim;
    for (int64_t i = 0; i < dim; ++i) {
      const float w = ToFloat(row[i]);
      sum[i] = kBinary ? sum[i] + w : MulAdd(values[k], w, sum[i]);
    }
  }
  for (int64_t i = 0; i < dim; ++i) out[i] = sum[i];
}

// Sums rows of one column, which is a gather and a dot product. Independent sums hide the latency
// of the additions. Their number is fixed, so the result is the same on every SIMD level with fused
// multiply-add.
template <bool kBinary, class Id, class W>
void SumScalars(const W* table, const Id* ids, const float* values, int64_t n, int64_t readable,
                float* out) {
  constexpr int kSums = 8;
  float sum[kSums] = {};
  int64_t k = 0;
  for (; k + kSums <= n; k += kSums) {
    if (k + kNarrowAhead + kSums <= readable) {
      for (int i = 0; i < kSums; ++i) __builtin_prefetch(table + ids[k + kNarrowAhead + i]);
    }
    for (int i = 0; i < kSums; ++i) {
      const float w = ToFloat(table[ids[k + i]]);
      sum[i] = kBinary ? sum[i] + w : MulAdd(values[k + i], w, sum[i]);
    }
  }
  for (int i = 0; k < n; ++k, ++i) {
    if (k + kNarrowAhead < readable) __builtin_prefetch(table + ids[k + kNarrowAhead]);
    const float w = ToFloat(table[ids[k]]);
    sum[i] = kBinary ? sum[i] + w : MulAdd(values[k], w, sum[i]);
  }
  for (int i = 1; i < kSums; ++i) sum[0] += sum[i];
  out[0] = sum[0];
}

template <bool kBinary, class Id, class W>
void SumRowsOfKind(const W* table, int64_t dim, const Id* ids, const float* values, int64_t n,
                   int64_t readable, float* out) {
  if (dim == 1) return SumScalars<kBinary>(table, ids, values, n, readable, out);
  if (dim < kLanes) {
    return SumNarrow<kBinary, kLanes / 2>(table, dim, ids, values, n, readable, out);
  }
  const int64_t vectors = (dim + kLanes - 1) / kLanes;
  const int64_t blocks = (vectors + kMaxBlock - 1) / kMaxBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = vectors * b / blocks, end = vectors * (b + 1) / blocks;
    const int64_t column = begin * kLanes;
    const int64_t last = b + 1 < blocks ? (end - 1) * kLanes : dim - kLanes;
    SumBlockOfSize<kMaxBlock, kBinary>(static_cast<int>(end - begin), table + column, dim,
                                       last - column, ids, values, n, readable, out + column);
  }
}

template <class Id, class W>
void SumRows(const W* table, int64_t dim, const Id* ids, const float* values, int64_t n,
             int64_t readable, float* out) {
  if (values == nullptr) {
    SumRowsOfKind<true>(table, dim, ids, values, n, readable, out);
  } else {
    SumRowsOfKind<false>(table, dim, ids, values, n, readable, out);
  }
}

// Sums the rows of a range of segments. Rows of at most one block have a loop for each block size,
// because segments can be as short as one entry.
template <bool kBinary, int kBlock, class Id, class W>
void SumSegmentsOfKind(const SegmentSums<Id, W>& s, int64_t begin, int64_t end) {
  const int64_t dim = s.dim, vectors = (dim + kLanes - 1) / kLanes;
  const bool one_block = dim >= kLanes && vectors <= kMaxBlock;
  if constexpr (kBlock > 0) {
    if (one_block && vectors < kBlock) {
      return SumSegmentsOfKind<kBinary, kBlock - 1>(s, begin, end);
    }
  }
  for (int64_t b = begin; b < end; ++b) {
    const int64_t k = s.splits[b], n = s.splits[b + 1] - k, readable = s.num_entries - k;
    const float* const values = kBinary ? nullptr : s.values + k;
    float* const out = s.out + b * dim;
    if (one_block) {
      if constexpr (kBlock > 0) {
        SumBlock<kBlock, kBinary>(s.table, dim, dim - kLanes, s.ids + k, values, n, readable, out);
      }
    } else {
      SumRowsOfKind<kBinary>(s.table, dim, s.ids + k, values, n, readable, out);
    }
  }
}

template <class Id, class W>
void SumSegments(const SegmentSums<Id, W>& s, int64_t begin, int64_t end) {
  if (s.values == nullptr) {
    SumSegmentsOfKind<true, kMaxBlock>(s, begin, end);
  } else {
    SumSegmentsOfKind<false, kMaxBlock>(s, begin, end);
  }
}

template <int kBlock, class Id, class W>
void GatherRowsOfSize(const SegmentSums<Id, W>& s, int64_t begin, int64_t end) {
  const int64_t dim = s.dim, vectors = (dim + kLanes - 1) / kLanes;
  const bool one_block = dim >= kLanes && vectors <= kMaxBlock;
  if constexpr (kBlock > 0) {
    if (one_block && vectors < kBlock) return GatherRowsOfSize<kBlock - 1>(s, begin, end);
  }
  for (int64_t k = begin; k < end; ++k) {
    float* const out = s.out + k * dim;
    if (one_block) {
      if constexpr (kBlock > 0) {
        SumBlock<kBlock, true>(s.table, dim, dim - kLanes, s.ids + k, nullptr, 1, s.num_entries - k,
                               out);
      }
    } else {
      SumRowsOfKind<true>(s.table, dim, s.ids + k, nullptr, 1, s.num_entries - k, out);
    }
  }
}

template <class Id, class W>
void GatherRows(const SegmentSums<Id, W>& s, int64_t begin, int64_t end) {
  GatherRowsOfSize<kMaxBlock>(s, begin, end);
}

inline float AddLanes(Vec v) {
  float lanes[kLanes];
  __builtin_memcpy(lanes, &v, sizeof(v));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Computes out[j] = table[ids[j]] . row for kRows ids, with independent sums. The rows of
// ids[j + ahead] are prefetched one line at a time, because all lines at once would exceed the line
// fill buffers of the CPU core.
template <int kRows, class Id, class W>
__attribute__((always_inline)) inline void DotBlock(const W* table, int64_t dim, const Id* ids,
                                                    int64_t ahead, const float* row, float* out) {
  constexpr int64_t kStep = 16;
  const W *w[kRows], *later[kRows];
  Vec sums[kRows];
  for (int j = 0; j < kRows; ++j) {
    w[j] = table + ids[j] * dim;
    later[j] = table + ids[j + ahead] * dim;
    sums[j] = Vec{};
    if (dim % kStep != 0) __builtin_prefetch(later[j] + dim - 1);
  }
  const auto add = [&](int64_t i) __attribute__((always_inline)) {
    const Vec g = VecAt(row + i);
#pragma GCC unroll 16
    for (int j = 0; j < kRows; ++j) sums[j] = MulAdd(Load(w[j] + i), g, sums[j]);
  };
  int64_t i = 0;
  for (; i + kStep <= dim; i += kStep) {
#pragma GCC unroll 16
    for (int j = 0; j < kRows; ++j) __builtin_prefetch(later[j] + i);
#pragma GCC unroll 16
    for (int64_t v = 0; v < kStep; v += kLanes) add(i + v);
  }
  for (; i + kLanes <= dim; i += kLanes) add(i);
  for (int j = 0; j < kRows; ++j) {
    float sum = AddLanes(sums[j]);
    for (int64_t d = i; d < dim; ++d) sum = MulAdd(ToFloat(w[j][d]), row[d], sum);
    out[j] = sum;
  }
}

template <class Id, class W>
void DotRows(const W* table, int64_t dim, const Id* ids, const float* row, int64_t n,
             int64_t readable, float* out) {
  constexpr int kRows = 4;
  int64_t k = 0;
  for (; k + kRows <= n; k += kRows) {
    const int64_t ahead = k + kRows + kPrefetchAhead <= readable ? kPrefetchAhead : 0;
    DotBlock<kRows>(table, dim, ids + k, ahead, row, out + k);
  }
  for (; k < n; ++k) DotBlock<1>(table, dim, ids + k, 0, row, out + k);
}

template <class Id, class W>
constexpr IdKernels<Id, W> kIdKernels = {SumRows<Id, W>, SumSegments<Id, W>, GatherRows<Id, W>,
                                         DotRows<Id, W>};

#define TWML_RULE(Name, ...) Update<UpdateRule::k##Name, Row, W>,
template <class W, class Row>
constexpr TableKernels<W> kTableKernels = {
    kIdKernels<int32_t, W>, kIdKernels<int64_t, W>, {TWML_FOR_EACH_UPDATE_RULE(TWML_RULE)}};
#undef TWML_RULE

}  // namespace

#define TWML_STRING_OF(x) #x
#define TWML_STRING(x) TWML_STRING_OF(x)
extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {
    TWML_STRING(TWML_SIMD_LEVEL),
    kTableKernels<float, Float32Row>,
    kTableKernels<Bfloat16, Bfloat16Row>,
};

}  // namespace twml::TWML_SIMD_LEVEL
