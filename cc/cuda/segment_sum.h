// Sums of weighted table rows over segments, as cc/core/segment_sum.h: the forward pass, the
// backward pass and the sums of duplicates. A tile sums a segment: a warp if the rows are wide,
// part of a warp if they are narrow. The additions have the order of the CPU's kernels, so the
// results have the same bits as theirs where those use fused multiply-add. There are no atomic
// additions of floats: the result does not depend on the order of blocks.
//
// Segments of more than kSegmentPiece entries are summed in pieces of that size, by three kernels:
// SumSegments sums the short segments and makes a list of the long ones, SumPieces sums the pieces,
// and AddPieces adds the sums of the pieces of each long segment in order.
#ifndef TWML_CUDA_SEGMENT_SUM_H_
#define TWML_CUDA_SEGMENT_SUM_H_

#include "cc/cuda/formulas.h"
#include "cc/cuda/platform.h"
#include "cc/cuda/tile.h"
#include "cc/cuda/unchecked_batch.h"
#include "cc/cuda/workspace.h"

namespace twml::cuda {

constexpr int64_t kPiece = 2048;  // kSegmentPiece of cc/core/segment_sum.h
constexpr int kMaxColumns = 4;    // that a lane sums at once
constexpr int kScalarSums = 8;    // independent sums of rows of one column, as on CPUs
constexpr int kTablesPerLaunch = 8;

// The long segments of a batch. The order of the list depends on the order of blocks, the results
// do not.
struct LongSegments {
  struct Segment {
    int64_t segment;
    int32_t first_piece, num_pieces;
  };
  // [2]: the number of segments and of pieces, zero at first. Invalid splits can ask for more than
  // 2^31 pieces.
  unsigned long long* counts;
  Segment* segments;      // [max_pieces]
  int32_t* piece_owners;  // [max_pieces], the position in `segments`
  float* sums;            // [max_pieces, dim]
  int64_t max_pieces;     // 0: no segment can be long
};

// The product of a batch with a matrix. Segment s has the entries splits[s] to splits[s + 1]. If
// splits is null, segment k has the entry k alone.
template <class W, class Id>
struct Product {
  const W* table;
  int64_t table_rows, dim;
  const Id* ids;
  const float* values;  // null: all are 1
  const int64_t* splits;
  int64_t num_entries;
  int64_t num_segments;
  const int64_t* device_num_segments;  // if not null, num_segments is an upper bound
  TwmlCudaErrors* errors;              // of the ids; null if they were checked
  LongSegments longs;
};

// The lanes that sum one segment.
inline __host__ __device__ int TileWidth(int64_t dim) {
  if (dim == 1) return kScalarSums;
  if (dim > 16) return kWarp;
  int width = 2;
  while (width < dim) width *= 2;
  return width;
}

template <class W, class Id>
__device__ int64_t NumSegments(const Product<W, Id>& p) {
  return p.device_num_segments == nullptr ? p.num_segments : *p.device_num_segments;
}

// Adds the rows of the entries [begin, end) to sum[c], the columns column + lane + c * width.
template <int kColumns, class W, class Id>
__device__ void AddRows(const Product<W, Id>& p, const Tile& tile, int64_t column, Range range,
                        float (&sum)[kColumns]) {
  for (int64_t at = range.begin; at < range.end; at += tile.width) {
    const int64_t left = range.end - at;
    const int n = left < tile.width ? static_cast<int>(left) : tile.width;
    // Each lane reads one entry, and the tile goes through them together.
    Id id = Id{-1};
    float value = 1;
    if (tile.lane < n) {
      id = p.ids[at + tile.lane];
      if (p.values != nullptr) value = p.values[at + tile.lane];
      if (static_cast<uint64_t>(static_cast<int64_t>(id)) >= static_cast<uint64_t>(p.table_rows)) {
        if (p.errors != nullptr && column == 0) ReportBadId(p.errors, at + tile.lane);
        id = Id{-1};
      }
    }
#pragma unroll 4
    for (int j = 0; j < n; ++j) {
      const int64_t row = tile.Shuffle(id, j);
      const float weight = p.values == nullptr ? 1.0f : tile.Shuffle(value, j);
      if (row < 0) continue;
      const W* from = p.table + row * p.dim + column;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int64_t d = tile.lane + c * tile.width;
        if (column + d < p.dim) sum[c] = MulAdd(weight, ToFloat(from[d]), sum[c]);
      }
    }
  }
}

// Rows of one column: lane i sums the entries i, i + 8, ..., and the sums are added in order.
template <class W, class Id>
__device__ float SumScalars(const Product<W, Id>& p, const Tile& tile, Range range) {
  float sum = 0;
  for (int64_t k = range.begin + tile.lane; k < range.end; k += kScalarSums) {
    const int64_t row = p.ids[k];
    if (static_cast<uint64_t>(row) >= static_cast<uint64_t>(p.table_rows)) {
      if (p.errors != nullptr) ReportBadId(p.errors, k);
      continue;
    }
    sum = MulAdd(p.values == nullptr ? 1.0f : p.values[k], ToFloat(p.table[row]), sum);
  }
  float total = tile.Shuffle(sum, 0);
  for (int i = 1; i < kScalarSums; ++i) total += tile.Shuffle(sum, i);
  return total;
}

// Sums the entries of a range.
template <class W, class Id>
struct RangeSum {
  const Product<W, Id>& product;
  Range range;

  template <int kColumns>
  __device__ void operator()(const Tile& tile, int64_t column, float (&sum)[kColumns]) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] = 0;
    if (product.dim == 1) {
      sum[0] = SumScalars(product, tile, range);
    } else {
      AddRows(product, tile, column, range, sum);
    }
  }
};

// Adds the sums of the pieces of a long segment.
struct PiecesSum {
  const float* pieces;  // [number, dim]
  int64_t number, dim;

  template <int kColumns>
  __device__ void operator()(const Tile& tile, int64_t column, float (&sum)[kColumns]) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int64_t d = column + tile.lane + c * tile.width;
      sum[c] = 0;
      if (d >= dim) continue;
      sum[c] = pieces[d];
      for (int64_t p = 1; p < number; ++p) sum[c] += pieces[p * dim + d];
    }
  }
};

// Calls body(std::integral_constant-like number of columns per lane, first column) for all columns.
template <int kColumns>
struct ColumnsPerLane {
  static constexpr int value = kColumns;
};
template <class Body>
__device__ void ForColumns(const Tile& tile, int64_t dim, Body body) {
  for (int64_t column = 0; column < dim; column += kMaxColumns * tile.width) {
    const int64_t left = dim - column;
    if (left > 2 * tile.width) {
      body(ColumnsPerLane<4>(), column);
    } else if (left > tile.width) {
      body(ColumnsPerLane<2>(), column);
    } else {
      body(ColumnsPerLane<1>(), column);
    }
  }
}

// What is done with the sum of a segment: consume(tile, segment, sum, dim), where sum is a RangeSum
// or a PiecesSum. Writes it to a row of a matrix.
struct StoreRows {
  float* out;

  template <class Sum>
  __device__ void operator()(const Tile& tile, int64_t segment, const Sum& sum, int64_t dim) const {
    float* row = out + segment * dim;
    ForColumns(tile, dim, [&](auto columns, int64_t column) {
      float sums[decltype(columns)::value];
      sum(tile, column, sums);
      for (int c = 0; c < decltype(columns)::value; ++c) {
        const int64_t d = column + tile.lane + c * tile.width;
        if (d < dim) row[d] = sums[c];
      }
    });
  }
};

// Products and consumers of one launch; blockIdx.y selects one. Kernels copy the one that they
// need: with references, each thread would copy all of them to its local memory.
template <class W, class Id, class Consume>
struct Launch {
  Product<W, Id> products[kTablesPerLaunch];
  Consume consumers[kTablesPerLaunch];
};

// Appends a segment to the list, unless there is no memory left.
__device__ inline bool ListLongSegment(const LongSegments& longs, int64_t segment, int64_t pieces) {
  const auto number = static_cast<unsigned long long>(pieces);
  const auto first = static_cast<int64_t>(atomicAdd(&longs.counts[1], number));
  if (first + pieces > longs.max_pieces) return false;
  const auto at = static_cast<int32_t>(atomicAdd(&longs.counts[0], 1ull));
  longs.segments[at] = {segment, static_cast<int32_t>(first), static_cast<int32_t>(pieces)};
  for (int64_t i = 0; i < pieces; ++i) longs.piece_owners[first + i] = at;
  return true;
}

template <class W, class Id, class Consume>
__global__ void __launch_bounds__(kThreads) SumSegments(const Launch<W, Id, Consume> launch) {
  const Product<W, Id> p = launch.products[blockIdx.y];
  const Consume consume = launch.consumers[blockIdx.y];
  const Tile tile(TileWidth(p.dim));
  const int64_t n = NumSegments(p);
  for (int64_t s = tile.Index(); s < n; s += tile.Count()) {
    const Range range = EntriesOf(p.splits, s, p.num_entries);
    if (tile.lane == 0 && p.errors != nullptr) {
      CheckSplits(p.splits, s, n, p.num_entries, &p.errors->bad_splits);
    }
    const int64_t size = range.end - range.begin;
    if (size <= kPiece) {
      consume(tile, s, RangeSum<W, Id>{p, range}, p.dim);
    } else {
      const int64_t pieces = (size + kPiece - 1) / kPiece;
      int listed = 0;
      if (tile.lane == 0) listed = ListLongSegment(p.longs, s, pieces);
      // The segments of invalid splits may overlap, and then be more than there is memory for.
      if (!tile.Shuffle(listed, 0)) consume(tile, s, RangeSum<W, Id>{p, {0, 0}}, p.dim);
    }
  }
}

template <class W, class Id, class Consume>
__global__ void __launch_bounds__(kThreads) SumPieces(const Launch<W, Id, Consume> launch) {
  const Product<W, Id> p = launch.products[blockIdx.y];
  if (p.longs.max_pieces == 0) return;
  const Tile tile(TileWidth(p.dim));
  const auto reserved = static_cast<int64_t>(p.longs.counts[1]);
  const int64_t n = reserved < p.longs.max_pieces ? reserved : p.longs.max_pieces;
  for (int64_t i = tile.Index(); i < n; i += tile.Count()) {
    const int32_t owner = p.longs.piece_owners[i];
    if (owner < 0) continue;
    const LongSegments::Segment segment = p.longs.segments[owner];
    Range range = EntriesOf(p.splits, segment.segment, p.num_entries);
    range.begin += (i - segment.first_piece) * kPiece;
    if (range.end - range.begin > kPiece) range.end = range.begin + kPiece;
    StoreRows{p.longs.sums}(tile, i, RangeSum<W, Id>{p, range}, p.dim);
  }
}

template <class W, class Id, class Consume>
__global__ void __launch_bounds__(kThreads) AddPieces(const Launch<W, Id, Consume> launch) {
  const Product<W, Id> p = launch.products[blockIdx.y];
  const Consume consume = launch.consumers[blockIdx.y];
  if (p.longs.max_pieces == 0) return;
  const Tile tile(TileWidth(p.dim));
  const auto n = static_cast<int64_t>(p.longs.counts[0]);
  for (int64_t i = tile.Index(); i < n; i += tile.Count()) {
    const LongSegments::Segment segment = p.longs.segments[i];
    const PiecesSum sum = {p.longs.sums + segment.first_piece * p.dim, segment.num_pieces, p.dim};
    consume(tile, segment.segment, sum, p.dim);
  }
}

// Allocates the list of long segments if there can be any.
inline int PlanLongSegments(Workspace* workspace, cudaStream_t stream, int64_t num_entries,
                            int64_t dim, LongSegments* longs) {
  *longs = {};
  if (num_entries <= kPiece) return 0;
  // A segment of n > kPiece entries has less than 2 n / kPiece pieces.
  longs->max_pieces = 2 * num_entries / kPiece;
  longs->counts = workspace->Allocate<unsigned long long>(2);
  longs->segments = workspace->Allocate<LongSegments::Segment>(longs->max_pieces);
  longs->piece_owners = workspace->Allocate<int32_t>(longs->max_pieces);
  longs->sums = workspace->Allocate<float>(longs->max_pieces * dim);
  if (!workspace->ok()) return TWML_CUDA_OUT_OF_MEMORY;
  TWML_CUDA_RETURN_IF_ERROR(CodeOf(
      cudaMemsetAsync(longs->piece_owners, 0xff, longs->max_pieces * sizeof(int32_t), stream)));
  return CodeOf(cudaMemsetAsync(longs->counts, 0, 2 * sizeof(*longs->counts), stream));
}

// Sums the segments of `count` products, at most kTablesPerLaunch, and consumes the sums.
template <class W, class Id, class Consume>
int SumAndConsume(cudaStream_t stream, int count, const Launch<W, Id, Consume>& launch) {
  int64_t tiles = 1, pieces = 0;
  for (int i = 0; i < count; ++i) {
    const Product<W, Id>& p = launch.products[i];
    const int64_t per_block = kThreads / TileWidth(p.dim);
    const int64_t blocks = (p.num_segments + per_block - 1) / per_block;
    const int64_t piece_blocks = (p.longs.max_pieces + per_block - 1) / per_block;
    tiles = tiles < blocks ? blocks : tiles;
    pieces = pieces < piece_blocks ? piece_blocks : pieces;
  }
  const unsigned tables = static_cast<unsigned>(count);
  TWML_LAUNCH((SumSegments<W, Id, Consume>), dim3(BlocksFor(tiles, 1), tables), kThreads, stream,
              launch);
  if (pieces > 0) {
    const dim3 grid(BlocksFor(pieces, 1), tables);
    TWML_LAUNCH((SumPieces<W, Id, Consume>), grid, kThreads, stream, launch);
    TWML_LAUNCH((AddPieces<W, Id, Consume>), grid, kThreads, stream, launch);
  }
  return 0;
}

}  // namespace twml::cuda

#endif  // TWML_CUDA_SEGMENT_SUM_H_
