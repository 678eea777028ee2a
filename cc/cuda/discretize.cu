// Discretization of continuous features, as cc/core/discretize.h.
#include <limits>

#include "cc/core/hash.h"
#include "cc/cuda/platform.h"
#include "cc/cuda/sort_and_scan.h"
#include "cc/cuda/twml_cuda.h"
#include "cc/cuda/unchecked_batch.h"

namespace twml::cuda {
namespace {

constexpr int64_t kMissingBucket = -1;  // the bucket numbers that cc/core/discretize.cc hashes
constexpr int64_t kPassThroughBucket = -2;
constexpr int kKeepNaN = 0, kDropNaN = 1;    // MissingPolicy
constexpr int kDrop = 1, kUnknownError = 2;  // UnknownPolicy

// The output entries of one input entry: at most the bucket and the kept input.
struct Entries {
  int number;
  int64_t ids[2];
  float values[2];

  __device__ void Add(int64_t id, float value) {
    ids[number] = id;
    values[number++] = value;
  }
};

// The number of the items [0, n) that are < v (or <= v): they are in ascending order.
template <class T>
__device__ int64_t Rank(const T* items, int64_t n, T v, bool or_equal) {
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (items[middle] < v || (or_equal && items[middle] == v)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ int64_t Hash(const TwmlCudaBuckets& b, int64_t feature, int64_t bucket) {
  return ReduceToBits(HashPair(feature, bucket), b.bits);
}

__device__ Entries Discretize(const TwmlCudaBuckets& b, int64_t feature, float value) {
  Entries out = {};
  const int64_t f = Rank(b.feature_ids, b.num_features, feature, false);
  const bool known = f < b.num_features && b.feature_ids[f] == feature;
  const bool missing = value != value;
  // The ids of the features follow each other, then the ids of kept inputs, then ids passed on.
  const int64_t extra = b.missing == kKeepNaN ? 2 : 1;
  const int64_t num_buckets = b.num_boundaries + b.num_features * extra;
  if (missing && b.missing == kDropNaN) return out;
  if (!known) {
    if (b.unknown == kDrop) return out;
    const int64_t hash = Hash(b, feature, kPassThroughBucket);
    const int64_t first = num_buckets + (b.keep_inputs ? b.num_features : 0);
    out.Add(b.hashing ? hash : first + hash, value);
    return out;
  }
  const Range range = EntriesOf(b.splits, f, b.num_boundaries);
  const int64_t begin = range.begin, count = range.end - range.begin;
  if (b.hashing) {
    const int64_t bucket =
        missing ? kMissingBucket : Rank(b.boundaries + begin, count, value, b.side == 1);
    out.Add(Hash(b, feature, bucket), 1);
  } else {
    const int64_t bucket =
        missing ? count + 1 : Rank(b.boundaries + begin, count, value, b.side == 1);
    out.Add(begin + f * extra + bucket, 1);
  }
  if (b.keep_inputs && !missing) {
    out.Add(b.hashing ? Hash(b, feature, kPassThroughBucket) : num_buckets + f, value);
  }
  return out;
}

template <class Id>
__device__ Entries DiscretizeEntry(const TwmlCudaBatch& batch, const TwmlCudaBuckets& buckets,
                                   int64_t k) {
  return Discretize(buckets, static_cast<const Id*>(batch.ids)[k],
                    batch.values == nullptr ? 1.0f : batch.values[k]);
}

template <class Id>
__global__ void CountEntries(TwmlCudaBatch batch, TwmlCudaBuckets buckets, int64_t* counts,
                             TwmlCudaErrors* errors) {
  for (int64_t k = ThreadIndex(); k < batch.num_entries; k += NumThreads()) {
    counts[k] = DiscretizeEntry<Id>(batch, buckets, k).number;
    if (buckets.unknown != kUnknownError) continue;
    const int64_t feature = static_cast<const Id*>(batch.ids)[k];
    const int64_t f = Rank(buckets.feature_ids, buckets.num_features, feature, false);
    if (f == buckets.num_features || buckets.feature_ids[f] != feature) {
      atomicAdd(&errors->unknown_ids, 1ull);
    }
  }
}

struct ItemOf {
  const int64_t* items;
  __host__ __device__ int64_t operator()(int64_t k) const { return items[k]; }
};

// The row splits of the output. Splits that are not valid are taken as the nearest that are.
__global__ void WriteSplits(TwmlCudaBatch batch, const int64_t* ends, int64_t* row_splits_out) {
  const int64_t n = batch.num_entries;
  for (int64_t b = ThreadIndex(); b <= batch.num_rows; b += NumThreads()) {
    const int64_t at = batch.row_splits[b];
    row_splits_out[b] = at <= 0 || n == 0 ? 0 : ends[(at < n ? at : n) - 1];
  }
}

template <class Id>
__global__ void WriteEntries(TwmlCudaBatch batch, TwmlCudaBuckets buckets, const int64_t* ends,
                             int64_t* ids_out, float* values_out) {
  for (int64_t k = ThreadIndex(); k < batch.num_entries; k += NumThreads()) {
    const Entries entries = DiscretizeEntry<Id>(batch, buckets, k);
    for (int i = 0; i < entries.number; ++i) {
      ids_out[ends[k] - entries.number + i] = entries.ids[i];
      values_out[ends[k] - entries.number + i] = entries.values[i];
    }
  }
}

}  // namespace
}  // namespace twml::cuda

#define TWML_API extern "C" __attribute__((visibility("default")))

TWML_API int twml_cuda_discretize_sizes(const TwmlCudaCall* call, const TwmlCudaBatch* batch,
                                        const TwmlCudaBuckets* buckets, int64_t* ends,
                                        int64_t* row_splits_out) {
  using namespace twml::cuda;
  const cudaStream_t stream = StreamOf(*call);
  const int64_t n = batch->num_entries;
  if (n > std::numeric_limits<int32_t>::max()) return TWML_CUDA_TOO_LARGE;
  Workspace workspace(*call);
  if (n > 0) {
    int64_t* counts = workspace.Allocate<int64_t>(n);
    if (!workspace.ok()) return TWML_CUDA_OUT_OF_MEMORY;
    if (batch->wide_ids) {
      TWML_LAUNCH((CountEntries<int64_t>), BlocksFor(n), kThreads, stream, *batch, *buckets, counts,
                  call->errors);
    } else {
      TWML_LAUNCH((CountEntries<int32_t>), BlocksFor(n), kThreads, stream, *batch, *buckets, counts,
                  call->errors);
    }
    TWML_CUDA_RETURN_IF_ERROR(InclusiveSum(&workspace, stream, ItemOf{counts}, ends, n));
  }
  if (buckets->num_features > 0) {
    TWML_LAUNCH(CheckAllSplits, BlocksFor(buckets->num_features), kThreads, stream, buckets->splits,
                buckets->num_features, buckets->num_boundaries, &call->errors->bad_boundary_splits);
  }
  TWML_LAUNCH(CheckAllSplits, BlocksFor(batch->num_rows), kThreads, stream, batch->row_splits,
              batch->num_rows, n, &call->errors->bad_splits);
  TWML_LAUNCH(WriteSplits, BlocksFor(batch->num_rows + 1), kThreads, stream, *batch, ends,
              row_splits_out);
  return 0;
}

TWML_API int twml_cuda_discretize(const TwmlCudaCall* call, const TwmlCudaBatch* batch,
                                  const TwmlCudaBuckets* buckets, const int64_t* ends,
                                  int64_t* ids_out, float* values_out) {
  using namespace twml::cuda;
  const cudaStream_t stream = StreamOf(*call);
  const int64_t n = batch->num_entries;
  if (n == 0) return 0;
  if (batch->wide_ids) {
    TWML_LAUNCH((WriteEntries<int64_t>), BlocksFor(n), kThreads, stream, *batch, *buckets, ends,
                ids_out, values_out);
  } else {
    TWML_LAUNCH((WriteEntries<int32_t>), BlocksFor(n), kThreads, stream, *batch, *buckets, ends,
                ids_out, values_out);
  }
  return 0;
}
