// The forward pass, and the gradients with respect to the values and the table.
#include "cc/cuda/formulas.h"
#include "cc/cuda/segment_sum.h"
#include "cc/cuda/twml_cuda.h"

namespace twml::cuda {
namespace {

template <class W, class Id>
Product<W, Id> BatchTimesTable(const TwmlCudaCall& call, const TwmlCudaBatch& batch,
                               const TwmlCudaTable& table) {
  Product<W, Id> p = {};
  p.table = static_cast<const W*>(table.data);
  p.table_rows = table.rows;
  p.dim = table.dim;
  p.ids = static_cast<const Id*>(batch.ids);
  p.values = batch.values;
  p.splits = batch.row_splits;
  p.num_entries = batch.num_entries;
  p.num_segments = batch.num_rows;
  p.errors = call.errors;
  return p;
}

// The products of the batches whose ids and tables have these types, and whose rows are such that a
// lane owns kVec columns.
template <class W, class Id, int kVec>
int Forward(const TwmlCudaCall& call, int count, const TwmlCudaBatch* batches,
            const TwmlCudaTable* tables, float* const* outs) {
  Workspace workspace(call);
  const cudaStream_t stream = StreamOf(call);
  Launcher<kVec, W, Id, StoreRows<kVec>> launcher(stream);
  for (int i = 0; i < count; ++i) {
    const TwmlCudaBatch& batch = batches[i];
    const TwmlCudaTable& table = tables[i];
    const bool fits = (table.bfloat16 != 0) == (sizeof(W) == 2) &&
                      (batch.wide_ids != 0) == (sizeof(Id) == 8) &&
                      ColumnsPerLane(table.dim, static_cast<const W*>(table.data), outs[i]) == kVec;
    if (!fits || batch.num_rows == 0 || table.dim == 0) continue;
    Product<W, Id> p = BatchTimesTable<W, Id>(call, batch, table);
    TWML_CUDA_RETURN_IF_ERROR(
        PlanLongSegments(&workspace, stream, batch.num_entries, p.dim, &p.longs));
    TWML_CUDA_RETURN_IF_ERROR(launcher.Add(p, {outs[i]}));
  }
  return launcher.Flush();
}

template <class W, class Id>
int ForwardOfAllWidths(const TwmlCudaCall& call, int count, const TwmlCudaBatch* batches,
                       const TwmlCudaTable* tables, float* const* outs) {
  TWML_CUDA_RETURN_IF_ERROR((Forward<W, Id, 4>(call, count, batches, tables, outs)));
  TWML_CUDA_RETURN_IF_ERROR((Forward<W, Id, 2>(call, count, batches, tables, outs)));
  return Forward<W, Id, 1>(call, count, batches, tables, outs);
}

// A tile of 16 lanes computes the products of an entry: lane i takes every 16th column, whose sums
// are added pairwise. The columns after the last multiple of 16 are added in order. This is the
// order of the CPU's kernels with 16 lanes.
constexpr int kDotLanes = 16;
constexpr int kDotEntries = 16;  // neighbors that a tile computes, kDotTogether of them at once
constexpr int kDotTogether = 4;

// The rows whose products a tile computes together; null where there is none.
template <class W>
struct DotRows {
  const W* table[kDotTogether] = {};
  const float* grad[kDotTogether] = {};
};

template <class W>
__device__ void MultiplyRows(const Tile& tile, const DotRows<W>& rows, int64_t dim,
                             float (&sum)[kDotTogether]) {
  const int64_t whole = dim / kDotLanes * kDotLanes;
#pragma unroll
  for (int i = 0; i < kDotTogether; ++i) sum[i] = 0;
  for (int64_t d = tile.lane; d < whole; d += kDotLanes) {
#pragma unroll
    for (int i = 0; i < kDotTogether; ++i) {
      if (rows.table[i] != nullptr) {
        sum[i] = MulAdd(ToFloat(rows.table[i][d]), rows.grad[i][d], sum[i]);
      }
    }
  }
  for (int half = kDotLanes / 2; whole > 0 && half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < kDotTogether; ++i) sum[i] += tile.Shuffle(sum[i], tile.lane ^ half);
  }
  const int64_t own = whole + tile.lane;
#pragma unroll
  for (int i = 0; i < kDotTogether; ++i) {
    const bool has = own < dim && rows.table[i] != nullptr;
    const float own_w = has ? ToFloat(rows.table[i][own]) : 0, own_g = has ? rows.grad[i][own] : 0;
    for (int d = 0; whole + d < dim; ++d) {
      sum[i] = MulAdd(tile.Shuffle(own_w, d), tile.Shuffle(own_g, d), sum[i]);
    }
  }
}

template <class W, class Id>
__global__ void __launch_bounds__(kThreads)
    DotProducts(TwmlCudaBatch batch, TwmlCudaTable table, const float* grad, float* out,
                TwmlCudaErrors* errors) {
  const Tile warp(kWarp), tile = Tile::InStep(kDotLanes);
  const Id* ids = static_cast<const Id*>(batch.ids);
  const int64_t* splits = batch.row_splits;
  const int64_t n = batch.num_entries;
  constexpr int64_t kOfWarp = kWarp / kDotLanes * kDotEntries;
  for (int64_t first = warp.Index() * kOfWarp; first < n; first += warp.Count() * kOfWarp) {
    const int64_t begin = first + warp.lane / kDotLanes * kDotEntries;
    int64_t row = begin < n ? RowOf(splits, batch.num_rows, begin) : 0;
    for (int at = 0; at < kDotEntries; at += kDotTogether) {
      DotRows<W> rows;
#pragma unroll
      for (int i = 0; i < kDotTogether; ++i) {
        const int64_t k = begin + at + i;
        if (k >= n) continue;
        while (row + 1 < batch.num_rows && splits[row + 1] <= k) ++row;
        const int64_t id = ids[k];
        if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(table.rows)) {
          if (tile.lane == 0) ReportBadId(errors, k);
          continue;
        }
        rows.table[i] = static_cast<const W*>(table.data) + id * table.dim;
        rows.grad[i] = grad + row * table.dim;
      }
      float dots[kDotTogether];
      MultiplyRows(tile, rows, table.dim, dots);
#pragma unroll
      for (int i = 0; i < kDotTogether; ++i) {
        const int64_t k = begin + at + i;
        if (tile.lane == 0 && k < n) out[k] = rows.table[i] == nullptr ? 0 : dots[i];
      }
    }
  }
}

template <class W, class Id>
int ValuesGrad(const TwmlCudaCall& call, const TwmlCudaBatch& batch, const TwmlCudaTable& table,
               const float* grad, float* out) {
  const cudaStream_t stream = StreamOf(call);
  TWML_LAUNCH(CheckAllSplits, BlocksFor(batch.num_rows), kThreads, stream, batch.row_splits,
              batch.num_rows, batch.num_entries, &call.errors->bad_splits);
  const int64_t tiles = (batch.num_entries + kDotEntries - 1) / kDotEntries;
  TWML_LAUNCH((DotProducts<W, Id>), BlocksFor(tiles * kDotLanes), kThreads, stream, batch, table,
              grad, out, call.errors);
  return 0;
}

}  // namespace
}  // namespace twml::cuda

#define TWML_API extern "C" __attribute__((visibility("default")))

TWML_API int twml_cuda_sparse_linear(const TwmlCudaCall* call, int count,
                                     const TwmlCudaBatch* batches, const TwmlCudaTable* tables,
                                     float* const* outs) {
  using namespace twml;
  using namespace twml::cuda;
  TWML_CUDA_RETURN_IF_ERROR(
      (ForwardOfAllWidths<float, int32_t>(*call, count, batches, tables, outs)));
  TWML_CUDA_RETURN_IF_ERROR(
      (ForwardOfAllWidths<float, int64_t>(*call, count, batches, tables, outs)));
  TWML_CUDA_RETURN_IF_ERROR(
      (ForwardOfAllWidths<Bfloat16, int32_t>(*call, count, batches, tables, outs)));
  return ForwardOfAllWidths<Bfloat16, int64_t>(*call, count, batches, tables, outs);
}

TWML_API int twml_cuda_values_grad(const TwmlCudaCall* call, const TwmlCudaBatch* batch,
                                   const TwmlCudaTable* table, const float* grad, float* out) {
  using namespace twml;
  using namespace twml::cuda;
  if (batch->num_entries == 0 || batch->num_rows == 0) return 0;
  if (table->bfloat16) {
    return batch->wide_ids ? ValuesGrad<Bfloat16, int64_t>(*call, *batch, *table, grad, out)
                           : ValuesGrad<Bfloat16, int32_t>(*call, *batch, *table, grad, out);
  }
  return batch->wide_ids ? ValuesGrad<float, int64_t>(*call, *batch, *table, grad, out)
                         : ValuesGrad<float, int32_t>(*call, *batch, *table, grad, out);
}
