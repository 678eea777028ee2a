// Sums of weighted table rows over segments, as cc/core/segment_sum.h: the forward pass, the
// backward pass and the sums of duplicates. A tile sums a segment. Each of its lanes owns kVec
// neighboring columns, which it loads with one instruction, and it reads the rows of several
// entries before it adds the first one. The additions have the order of the CPU's kernels, so the
// results have the same bits as theirs where those use fused multiply-add. There are no atomic
// additions of floats: the result does not depend on the order of blocks.
//
// SumSegments sums the short segments and makes a list of the long ones. SumLongSegments sums these
// in pieces of kPiece entries: a warp sums 32 columns of a piece, and the warp that is the last one
// of a segment adds its pieces in order.
#ifndef TWML_CUDA_SEGMENT_SUM_H_
#define TWML_CUDA_SEGMENT_SUM_H_

#include "cc/cuda/formulas.h"
#include "cc/cuda/platform.h"
#include "cc/cuda/tile.h"
#include "cc/cuda/unchecked_batch.h"
#include "cc/cuda/workspace.h"

namespace twml::cuda {

constexpr int64_t kPiece = 2048;        // kSegmentPiece of cc/core/segment_sum.h
constexpr int64_t kShortSegment = 128;  // entries that a tile sums alone, at most
constexpr int kScalarSums = 8;          // independent sums of rows of one column, as on CPUs
constexpr int kTablesPerLaunch = 8;
constexpr int64_t kSegmentBlocks = 1 << 12;  // enough to fill a GPU several times
constexpr int64_t kLongBlocks = 1 << 9;      // most batches have no long segments

// Neighboring columns of a row.
template <class W, int kVec>
struct alignas(sizeof(W) * kVec) Pack {
  W v[kVec];

  static __device__ Pack Load(const W* from) { return *reinterpret_cast<const Pack*>(from); }
  __device__ void Store(W* to) const { *reinterpret_cast<Pack*>(to) = *this; }
};

// The long segments of a batch. The order of the list depends on the order of blocks, the results
// do not.
struct LongSegments {
  struct Segment {
    int64_t segment;
    int32_t first_piece, num_pieces;
  };
  // PlanLongSegments sets these three arrays to zero. The counts have 64 bits, because invalid
  // splits can ask for more than 2^31 pieces.
  unsigned long long* counts;  // [2]: the number of segments and of pieces
  unsigned long long* done;    // [max_pieces]: how many sums of each segment are done
  int32_t* piece_owners;       // [max_pieces]: the position in `segments`, plus 1

  Segment* segments;   // [max_pieces]
  float* sums;         // [max_pieces, dim]
  int64_t max_pieces;  // 0: no segment can be long
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

// The lanes that sum one segment. Rows with more columns than these lanes own take several passes.
inline __host__ __device__ int TileWidth(int64_t dim, int vec) {
  if (dim == 1) return kScalarSums;
  int width = 1;
  while (width < kWarp && width * vec < dim) width *= 2;
  return width;
}

template <class W, class Id>
__device__ int64_t NumSegments(const Product<W, Id>& p) {
  return p.device_num_segments == nullptr ? p.num_segments : *p.device_num_segments;
}

// Some entries of a batch: the rows of the table, or -1 for what is not to be added.
template <int kEntries, class Id>
struct Entries {
  Id rows[kEntries];
  float weights[kEntries];

  // Reads the entries from `at` on that are in the range.
  template <class W>
  __device__ void Read(const Product<W, Id>& p, int64_t at, Range range, bool reports) {
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      const int64_t k = at + i;
      const bool within = k < range.end;
      rows[i] = within ? p.ids[k] : Id{-1};
      weights[i] = within && p.values != nullptr ? p.values[k] : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      const auto row = static_cast<uint64_t>(static_cast<int64_t>(rows[i]));
      if (row < static_cast<uint64_t>(p.table_rows)) continue;
      if (reports && at + i < range.end) ReportBadId(p.errors, at + i);
      rows[i] = Id{-1};
    }
  }
};

// Adds the columns from `column` on of the rows of a range of entries.
template <int kEntries, int kVec, class W, class Id>
__device__ void AddRows(const Product<W, Id>& p, int64_t column, Range range, float (&sum)[kVec]) {
  const bool reports = p.errors != nullptr && column == 0;
  const bool owns = column < p.dim;
  Entries<kEntries, Id> entries;
  entries.Read(p, range.begin, range, reports);
  for (int64_t at = range.begin; at < range.end; at += kEntries) {
    Pack<W, kVec> packs[kEntries];
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      if (entries.rows[i] < 0 || !owns) continue;
      const int64_t row = entries.rows[i];
      packs[i] = Pack<W, kVec>::Load(p.table + row * p.dim + column);
    }
    const Entries<kEntries, Id> current = entries;
    // The next entries are on their way while the rows of these are.
    if (at + kEntries < range.end) entries.Read(p, at + kEntries, range, reports);
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      if (current.rows[i] < 0 || !owns) continue;
#pragma unroll
      for (int c = 0; c < kVec; ++c) {
        sum[c] = MulAdd(current.weights[i], ToFloat(packs[i].v[c]), sum[c]);
      }
    }
  }
}

// Rows of one column: lane i sums the entries i, i + 8, ..., and the sums are added in order.
template <class W, class Id>
__device__ float SumScalars(const Product<W, Id>& p, const Tile& tile, Range range) {
  float sum = 0;
#pragma unroll 4
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

// A column of a piece, which all lanes of a warp sum together: each reads one entry of the next 32.
// There is no branch between the reads, so that they are all on their way at once.
template <class W, class Id>
__device__ float SumColumn(const Product<W, Id>& p, int64_t column, Range range) {
  constexpr int kTogether = 16;
  const Tile warp(kWarp);
  const bool reports = p.errors != nullptr && column == warp.lane;
  const W* const cells = p.table + (column < p.dim ? column : 0);
  float sum = 0;
  Entries<1, Id> next;
  next.Read(p, range.begin + warp.lane, range, reports);
  for (int64_t at = range.begin; at < range.end && p.table_rows > 0; at += kWarp) {
    const int64_t position = next.rows[0] < 0 ? -1 : next.rows[0] * p.dim;
    const float weight = next.weights[0];
    next.Read(p, at + kWarp + warp.lane, range, reports);
    for (int first = 0; first < kWarp; first += kTogether) {
      int64_t from[kTogether];
      float weights[kTogether];
      W cell[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        from[i] = warp.Shuffle(position, first + i);
        weights[i] = warp.Shuffle(weight, first + i);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) cell[i] = cells[from[i] < 0 ? 0 : from[i]];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float added = MulAdd(weights[i], ToFloat(cell[i]), sum);
        sum = from[i] < 0 ? sum : added;
      }
    }
  }
  return sum;
}

// The sum of the entries of a range. All lanes of the tile must call it together. A lane reads the
// rows of kAhead entries before it adds the first one.
template <int kAhead, class W, class Id>
struct RangeSum {
  const Product<W, Id>& product;
  Range range;

  template <int kVec>
  __device__ void operator()(const Tile& tile, int64_t column, float (&sum)[kVec]) const {
#pragma unroll
    for (int c = 0; c < kVec; ++c) sum[c] = 0;
    if (kVec == 1 && product.dim == 1) {
      sum[0] = SumScalars(product, tile, range);
    } else if (range.end - range.begin == 1) {
      AddRows<1>(product, column, range, sum);
    } else {
      AddRows<kAhead>(product, column, range, sum);
    }
  }
};

// The sum of the pieces of a long segment.
struct PiecesSum {
  const volatile float* pieces;  // [number, dim]; other blocks have written them
  int64_t number, dim;

  template <int kVec>
  __device__ void operator()(const Tile&, int64_t column, float (&sum)[kVec]) const {
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
      sum[c] = 0;
      if (column + c >= dim) continue;
      sum[c] = pieces[column + c];
      for (int64_t p = 1; p < number; ++p) sum[c] += pieces[p * dim + column + c];
    }
  }
};

// A consumer of sums: a kernel calls consume(tile, row, sum, dim) for each segment, where row is
// consume.TargetRow(segment), and sum is a RangeSum or a PiecesSum. Its kAhead is the number of
// entries that are read ahead, and its kBlocks the number of blocks that a multiprocessor must be
// able to run at once, which limits the registers. This consumer writes the rows of a matrix.
template <int kVec>
struct StoreRows {
  static constexpr int kAhead = 8, kBlocks = 4;
  float* out;

  __device__ int64_t TargetRow(int64_t segment) const { return segment; }

  template <class Sum>
  __device__ void operator()(const Tile& tile, int64_t row, const Sum& sum, int64_t dim) const {
    for (int64_t column = tile.lane * kVec; column - tile.lane * kVec < dim;
         column += tile.width * kVec) {
      Pack<float, kVec> sums;
      sum(tile, column, sums.v);
      if (column < dim) sums.Store(out + row * dim + column);
    }
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
  for (int64_t i = 0; i < pieces; ++i) longs.piece_owners[first + i] = at + 1;
  return true;
}

template <int kVec, class W, class Id, class Consume>
__global__ void __launch_bounds__(kThreads, Consume::kBlocks)
    SumSegments(const Launch<W, Id, Consume> launch) {
  const Product<W, Id> p = launch.products[blockIdx.y];
  const Consume consume = launch.consumers[blockIdx.y];
  using Sum = RangeSum<Consume::kAhead, W, Id>;
  const Tile tile(TileWidth(p.dim, kVec));
  const int64_t n = NumSegments(p);
  int64_t s = tile.Index();
  Range range = {0, 0}, next = {0, 0};
  int64_t row = 0, next_row = 0;
  const auto read = [&](int64_t segment, Range* entries, int64_t* target) {
    if (segment >= n) return;
    *entries = EntriesOf(p.splits, segment, p.num_entries);
    *target = consume.TargetRow(segment);
  };
  read(s, &range, &row);
  for (; s < n; s += tile.Count(), range = next, row = next_row) {
    read(s + tile.Count(), &next, &next_row);
    if (tile.lane == 0 && p.errors != nullptr) {
      CheckSplits(p.splits, s, n, p.num_entries, &p.errors->bad_splits);
    }
    const int64_t size = range.end - range.begin;
    if (size <= kShortSegment) {
      consume(tile, row, Sum{p, range}, p.dim);
    } else {
      const int64_t pieces = (size + kPiece - 1) / kPiece;
      int listed = 0;
      if (tile.lane == 0) listed = ListLongSegment(p.longs, s, pieces);
      // The segments of invalid splits may overlap, and then be more than there is memory for.
      if (!tile.Shuffle(listed, 0)) consume(tile, row, Sum{p, {0, 0}}, p.dim);
    }
  }
}

template <int kVec, class W, class Id, class Consume>
__global__ void __launch_bounds__(kThreads) SumLongSegments(const Launch<W, Id, Consume> launch) {
  const Product<W, Id> p = launch.products[blockIdx.y];
  if (p.longs.max_pieces == 0) return;
  const Consume consume = launch.consumers[blockIdx.y];
  const Tile warp(kWarp), tile(TileWidth(p.dim, kVec));
  const int64_t passes = (p.dim + kWarp - 1) / kWarp;
  const auto reserved = static_cast<int64_t>(p.longs.counts[1]);
  const int64_t n = reserved < p.longs.max_pieces ? reserved : p.longs.max_pieces;
  for (int64_t i = warp.Index(); i < n * passes; i += warp.Count()) {
    const int64_t piece = i / passes, column = i % passes * kWarp + warp.lane;
    const int32_t owner = p.longs.piece_owners[piece] - 1;
    if (owner < 0) continue;
    const LongSegments::Segment segment = p.longs.segments[owner];
    Range range = EntriesOf(p.splits, segment.segment, p.num_entries);
    range.begin += (piece - segment.first_piece) * kPiece;
    if (range.end - range.begin > kPiece) range.end = range.begin + kPiece;
    float sum = 0;
    if (p.dim > 1) {
      sum = SumColumn(p, column, range);
    } else if (warp.lane < kScalarSums) {
      sum = SumScalars(p, Tile(kScalarSums), range);
    }
    if (column < p.dim) p.longs.sums[piece * p.dim + column] = sum;
    __threadfence();
    __syncwarp();
    int last = 0;
    if (warp.lane == 0) {
      const auto sums = static_cast<unsigned long long>(segment.num_pieces * passes);
      last = atomicAdd(&p.longs.done[owner], 1ull) + 1 == sums;
    }
    if (!warp.Shuffle(last, 0)) continue;
    __threadfence();
    const PiecesSum pieces = {p.longs.sums + segment.first_piece * p.dim, segment.num_pieces,
                              p.dim};
    if (warp.lane < tile.width) {
      consume(tile, consume.TargetRow(segment.segment), pieces, p.dim);
    }
    __syncwarp();
  }
}

// Allocates the list of long segments if there can be any.
inline int PlanLongSegments(Workspace* workspace, cudaStream_t stream, int64_t num_entries,
                            int64_t dim, LongSegments* longs) {
  *longs = {};
  if (num_entries <= kShortSegment) return 0;
  // A segment of n > kShortSegment entries has at most n / kShortSegment pieces.
  const int64_t n = longs->max_pieces = num_entries / kShortSegment;
  const int64_t zeros = (2 + n) * sizeof(*longs->done) + n * sizeof(*longs->piece_owners);
  longs->counts = reinterpret_cast<unsigned long long*>(workspace->Allocate<char>(zeros));
  longs->segments = workspace->Allocate<LongSegments::Segment>(n);
  longs->sums = workspace->Allocate<float>(n * dim);
  if (!workspace->ok()) return TWML_CUDA_OUT_OF_MEMORY;
  longs->done = longs->counts + 2;
  longs->piece_owners = reinterpret_cast<int32_t*>(longs->done + n);
  return CodeOf(cudaMemsetAsync(longs->counts, 0, zeros, stream));
}

// Sums the segments of `count` products, at most kTablesPerLaunch, and consumes the sums.
template <int kVec, class W, class Id, class Consume>
int SumAndConsume(cudaStream_t stream, int count, const Launch<W, Id, Consume>& launch) {
  int64_t blocks = 1, warps = 0;
  for (int i = 0; i < count; ++i) {
    const Product<W, Id>& p = launch.products[i];
    const int64_t per_block = kThreads / TileWidth(p.dim, kVec);
    const int64_t own = (p.num_segments + per_block - 1) / per_block;
    const int64_t own_warps = p.longs.max_pieces * ((p.dim + kWarp - 1) / kWarp);
    blocks = blocks < own ? own : blocks;
    warps = warps < own_warps ? own_warps : warps;
  }
  const auto grid = [&](int64_t wanted, int64_t most) {
    return dim3(static_cast<unsigned>(wanted < most ? wanted : most), static_cast<unsigned>(count));
  };
  TWML_LAUNCH((SumSegments<kVec, W, Id, Consume>), grid(blocks, kSegmentBlocks), kThreads, stream,
              launch);
  if (warps > 0) {
    TWML_LAUNCH((SumLongSegments<kVec, W, Id, Consume>),
                grid(warps / (kThreads / kWarp) + 1, kLongBlocks), kThreads, stream, launch);
  }
  return 0;
}

// Queues the products that are given one after the other, kTablesPerLaunch in one launch.
template <int kVec, class W, class Id, class Consume>
class Launcher {
 public:
  explicit Launcher(cudaStream_t stream) : stream_(stream) {}

  int Add(const Product<W, Id>& product, const Consume& consume) {
    launch_.products[filled_] = product;
    launch_.consumers[filled_] = consume;
    return ++filled_ < kTablesPerLaunch ? 0 : Flush();
  }

  // Call it after the last product.
  int Flush() {
    const int count = filled_;
    filled_ = 0;
    return count == 0 ? 0 : SumAndConsume<kVec>(stream_, count, launch_);
  }

 private:
  const cudaStream_t stream_;
  int filled_ = 0;
  Launch<W, Id, Consume> launch_;
};

// How many columns of rows of `dim` columns a lane owns: the most for which all rows are aligned.
template <class... Pointers>
int ColumnsPerLane(int64_t dim, const Pointers*... pointers) {
  int vec = 4;
  const auto fits = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % (4 * vec) == 0; };
  while (vec > 1 && !(dim % vec == 0 && (... && fits(pointers)))) vec /= 2;
  return vec;
}

}  // namespace twml::cuda

#endif  // TWML_CUDA_SEGMENT_SUM_H_
