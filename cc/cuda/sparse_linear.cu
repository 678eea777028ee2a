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

// The products of the batches whose ids and tables have these types.
template <class W, class Id>
int Forward(const TwmlCudaCall& call, int count, const TwmlCudaBatch* batches,
            const TwmlCudaTable* tables, float* const* outs) {
  Workspace workspace(call);
  const cudaStream_t stream = StreamOf(call);
  Launch<W, Id, StoreRows> launch;
  int filled = 0;
  for (int i = 0; i < count; ++i) {
    const TwmlCudaBatch& batch = batches[i];
    const bool fits =
        (tables[i].bfloat16 != 0) == (sizeof(W) == 2) && (batch.wide_ids != 0) == (sizeof(Id) == 8);
    if (!fits || batch.num_rows == 0 || tables[i].dim == 0) continue;
    Product<W, Id>& p = launch.products[filled];
    p = BatchTimesTable<W, Id>(call, batch, tables[i]);
    TWML_CUDA_RETURN_IF_ERROR(
        PlanLongSegments(&workspace, stream, batch.num_entries, p.dim, &p.longs));
    launch.consumers[filled] = {outs[i]};
    if (++filled < kTablesPerLaunch) continue;
    TWML_CUDA_RETURN_IF_ERROR(SumAndConsume(stream, filled, launch));
    filled = 0;
  }
  return filled == 0 ? 0 : SumAndConsume(stream, filled, launch);
}

// A tile of 16 lanes computes the products of an entry: lane i takes every 16th column, whose sums
// are added pairwise. The columns after the last multiple of 16 are added in order. This is the
// order of the CPU's kernels with 16 lanes.
constexpr int kDotLanes = 16;
constexpr int kDotEntries = 16;  // that a tile computes one after the other

template <class W>
__device__ float DotRow(const Tile& tile, const W* w, const float* g, int64_t dim) {
  const int64_t whole = dim / kDotLanes * kDotLanes;
  float sum = 0;
  for (int64_t d = tile.lane; d < whole; d += kDotLanes) sum = MulAdd(ToFloat(w[d]), g[d], sum);
  for (int half = kDotLanes / 2; whole > 0 && half > 0; half /= 2) {
    sum += tile.Shuffle(sum, tile.lane ^ half);
  }
  const int64_t own = whole + tile.lane;
  const float own_w = own < dim ? ToFloat(w[own]) : 0, own_g = own < dim ? g[own] : 0;
  for (int i = 0; whole + i < dim; ++i) {
    sum = MulAdd(tile.Shuffle(own_w, i), tile.Shuffle(own_g, i), sum);
  }
  return sum;
}

template <class W, class Id>
__global__ void __launch_bounds__(kThreads)
    DotRows(TwmlCudaBatch batch, TwmlCudaTable table, const float* grad, float* out,
            TwmlCudaErrors* errors) {
  const Tile tile(kDotLanes);
  const Id* ids = static_cast<const Id*>(batch.ids);
  const int64_t* splits = batch.row_splits;
  const int64_t n = batch.num_entries;
  for (int64_t begin = tile.Index() * kDotEntries; begin < n; begin += tile.Count() * kDotEntries) {
    int64_t row = RowOf(splits, batch.num_rows, begin);
    for (int64_t k = begin; k < n && k < begin + kDotEntries; ++k) {
      while (row + 1 < batch.num_rows && splits[row + 1] <= k) ++row;
      const int64_t id = ids[k];
      const bool bad = static_cast<uint64_t>(id) >= static_cast<uint64_t>(table.rows);
      if (bad && tile.lane == 0) ReportBadId(errors, k);
      const W* w = static_cast<const W*>(table.data) + (bad ? 0 : id * table.dim);
      const float dot = bad ? 0 : DotRow(tile, w, grad + row * table.dim, table.dim);
      if (tile.lane == 0) out[k] = dot;
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
  TWML_LAUNCH((DotRows<W, Id>), BlocksFor(tiles * kDotLanes), kThreads, stream, batch, table, grad,
              out, call.errors);
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
  TWML_CUDA_RETURN_IF_ERROR((Forward<float, int32_t>(*call, count, batches, tables, outs)));
  TWML_CUDA_RETURN_IF_ERROR((Forward<float, int64_t>(*call, count, batches, tables, outs)));
  TWML_CUDA_RETURN_IF_ERROR((Forward<Bfloat16, int32_t>(*call, count, batches, tables, outs)));
  return Forward<Bfloat16, int64_t>(*call, count, batches, tables, outs);
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
