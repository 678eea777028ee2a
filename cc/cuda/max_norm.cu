// Normalization by the largest magnitude that was seen of each feature, as cc/core/max_norm.h.
#include "cc/cuda/group_by_id.h"
#include "cc/cuda/platform.h"
#include "cc/cuda/tile.h"
#include "cc/cuda/twml_cuda.h"
#include "cc/cuda/unchecked_batch.h"

namespace twml::cuda {
namespace {

__device__ uint32_t BitsOf(float v) {
  uint32_t bits;
  __builtin_memcpy(&bits, &v, sizeof(bits));
  return bits;
}
__device__ bool IsFinite(float v) { return (BitsOf(v) & 0x7f800000u) != 0x7f800000u; }

// Magnitudes have the order of their bits. A maximum does not depend on the order of its arguments.
__device__ void AtomicMax(float* magnitude, float v) {
  atomicMax(reinterpret_cast<int32_t*>(magnitude), static_cast<int32_t>(BitsOf(v)));
}

template <class Id>
__global__ void UpdateMaxima(TwmlCudaBatch batch, TwmlCudaMaxNorm norm) {
  const Id* ids = static_cast<const Id*>(batch.ids);
  for (int64_t k = ThreadIndex(); k < batch.num_entries; k += NumThreads()) {
    const int64_t id = ids[k];
    const float v = batch.values[k];
    if (static_cast<uint64_t>(id) < static_cast<uint64_t>(norm.input_dim) && IsFinite(v)) {
      AtomicMax(&norm.max_abs[id], fabsf(v));
    }
  }
}

// A warp updates the state of a feature, because the decay is applied once per batch.
__global__ void DecayAndUpdateMaxima(TwmlCudaGroups groups, TwmlCudaMaxNorm norm) {
  const Tile warp(kWarp);
  for (int64_t u = warp.Index(); u < *groups.num_groups; u += warp.Count()) {
    float largest = -1;
    for (int64_t k = groups.splits[u] + warp.lane; k < groups.splits[u + 1]; k += kWarp) {
      const float v = groups.values[k];
      if (IsFinite(v) && fabsf(v) > largest) largest = fabsf(v);
    }
    for (int half = kWarp / 2; half > 0; half /= 2) {
      const float other = warp.Shuffle(largest, warp.lane ^ half);
      if (other > largest) largest = other;
    }
    if (warp.lane != 0 || largest < 0) continue;
    float* const max_abs = &norm.max_abs[groups.ids[u]];
    const float decayed = *max_abs * norm.decay;
    *max_abs = decayed < largest ? largest : decayed;
  }
}

template <class Id>
__global__ void Normalize(TwmlCudaBatch batch, TwmlCudaMaxNorm norm, float* out, float* scale,
                          TwmlCudaErrors* errors) {
  const Id* ids = static_cast<const Id*>(batch.ids);
  for (int64_t k = ThreadIndex(); k < batch.num_entries; k += NumThreads()) {
    const int64_t id = ids[k];
    if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(norm.input_dim)) {
      ReportBadId(errors, k);
      out[k] = scale[k] = 0;
      continue;
    }
    const float v = batch.values[k];
    const float seen = norm.max_abs[id];
    const float m = seen < norm.epsilon ? norm.epsilon : seen;
    const bool finite = IsFinite(v);
    if (!finite && norm.nonfinite == 0) atomicAdd(&errors->bad_values, 1ull);
    const float ratio = finite ? v / m : 0;
    const float y = ratio < -1 ? -1 : ratio > 1 ? 1 : ratio;
    out[k] = norm.bias == nullptr ? y : y + norm.bias[id];
    scale[k] = finite && fabsf(v) <= m ? 1.0f / m : 0;
  }
}

template <class Id>
int MaxNorm(const TwmlCudaCall& call, const TwmlCudaBatch& batch, const TwmlCudaMaxNorm& norm,
            float* out, float* scale) {
  const cudaStream_t stream = StreamOf(call);
  const int64_t n = batch.num_entries;
  if (norm.training && norm.decay < 1) {
    Workspace workspace(call);
    TwmlCudaGroups groups = {};
    groups.ids = workspace.Allocate<int64_t>(n);
    groups.splits = workspace.Allocate<int64_t>(n + 1);
    groups.num_groups = workspace.Allocate<int64_t>(1);
    groups.rows = workspace.Allocate<int32_t>(n);
    groups.values = workspace.Allocate<float>(n);
    // Normalize reports ids out of range.
    TwmlCudaCall unreported = call;
    unreported.errors = workspace.Allocate<TwmlCudaErrors>(1);
    if (!workspace.ok()) return TWML_CUDA_OUT_OF_MEMORY;
    TwmlCudaBatch entries = batch;
    entries.row_splits = nullptr;
    entries.num_rows = n;
    TWML_CUDA_RETURN_IF_ERROR(GroupById(&workspace, unreported, entries, norm.input_dim, groups));
    TWML_LAUNCH(DecayAndUpdateMaxima, BlocksFor(n * kWarp), kThreads, stream, groups, norm);
  } else if (norm.training) {
    TWML_LAUNCH((UpdateMaxima<Id>), BlocksFor(n), kThreads, stream, batch, norm);
  }
  TWML_LAUNCH((Normalize<Id>), BlocksFor(n), kThreads, stream, batch, norm, out, scale,
              call.errors);
  return 0;
}

}  // namespace
}  // namespace twml::cuda

extern "C" __attribute__((visibility("default"))) int twml_cuda_max_norm(
    const TwmlCudaCall* call, const TwmlCudaBatch* batch, const TwmlCudaMaxNorm* norm, float* out,
    float* scale) {
  using namespace twml::cuda;
  if (batch->num_entries == 0) return 0;
  return batch->wide_ids ? MaxNorm<int64_t>(*call, *batch, *norm, out, scale)
                         : MaxNorm<int32_t>(*call, *batch, *norm, out, scale);
}
