#include <limits>

#include "cc/cuda/group_by_id.h"
#include "cc/cuda/platform.h"
#include "cc/cuda/sort_and_scan.h"
#include "cc/cuda/unchecked_batch.h"

namespace twml::cuda {
namespace {

// Sort keys: the ids, and input_dim for ids out of range. Also writes the row of each entry, and
// checks the splits.
template <class Id, class Key>
__global__ void MakeKeys(TwmlCudaBatch batch, int64_t input_dim, Key* keys, int32_t* positions,
                         int32_t* rows, TwmlCudaErrors* errors) {
  const int64_t n = batch.num_entries;
  for (int64_t k = ThreadIndex(); k < n; k += NumThreads()) {
    const int64_t id = static_cast<const Id*>(batch.ids)[k];
    const bool bad = static_cast<uint64_t>(id) >= static_cast<uint64_t>(input_dim);
    if (bad) ReportBadId(errors, k);
    keys[k] = static_cast<Key>(bad ? input_dim : id);
    positions[k] = static_cast<int32_t>(k);
    if (rows != nullptr) {
      rows[k] = static_cast<int32_t>(RowOf(batch.row_splits, batch.num_rows, k));
    }
  }
  if (rows == nullptr) return;
  for (int64_t b = ThreadIndex(); b < batch.num_rows; b += NumThreads()) {
    CheckSplits(batch.row_splits, b, batch.num_rows, n, &errors->bad_splits);
  }
}

// Item k of a sequence: 1 if a group begins at sorted entry k, else 0.
template <class Key>
struct IsFirstOfGroup {
  const Key* keys;
  __host__ __device__ int32_t operator()(int64_t k) const {
    return k == 0 || keys[k] != keys[k - 1] ? 1 : 0;
  }
};

// group_of[k] is the number of groups that begin at or before sorted entry k.
template <class Key>
__global__ void WriteGroups(const Key* keys, const int32_t* positions, const int32_t* rows,
                            const int32_t* group_of, TwmlCudaBatch batch, int64_t input_dim,
                            TwmlCudaGroups groups) {
  const int64_t n = batch.num_entries;
  for (int64_t k = ThreadIndex(); k < n; k += NumThreads()) {
    const int32_t position = positions[k];
    groups.rows[k] = rows == nullptr ? position : rows[position];
    if (batch.values != nullptr) groups.values[k] = batch.values[position];
    const int64_t group = group_of[k] - 1;
    if (k == 0 || group_of[k - 1] != group_of[k]) {
      groups.ids[group] = static_cast<int64_t>(keys[k]);
      groups.splits[group] = k;
    }
    if (k == n - 1) {
      groups.splits[group + 1] = n;
      const bool last_is_bad = static_cast<int64_t>(keys[k]) == input_dim;
      *groups.num_groups = last_is_bad ? group : group + 1;
    }
  }
}

// Groups ids whose keys, and input_dim, have `bits` bits.
template <class Id, class Key>
int GroupIds(Workspace* workspace, const TwmlCudaCall& call, const TwmlCudaBatch& batch,
             int64_t input_dim, int bits, const TwmlCudaGroups& groups) {
  const cudaStream_t stream = StreamOf(call);
  const int64_t n = batch.num_entries;
  Key* keys = workspace->Allocate<Key>(n);
  Key* sorted = workspace->Allocate<Key>(n);
  int32_t* positions = workspace->Allocate<int32_t>(n);
  int32_t* sorted_positions = workspace->Allocate<int32_t>(n);
  int32_t* rows = batch.row_splits == nullptr ? nullptr : workspace->Allocate<int32_t>(n);
  if (!workspace->ok()) return TWML_CUDA_OUT_OF_MEMORY;
  const int64_t threads = n < batch.num_rows ? batch.num_rows : n;
  TWML_LAUNCH((MakeKeys<Id, Key>), BlocksFor(threads), kThreads, stream, batch, input_dim, keys,
              positions, rows, call.errors);
  TWML_CUDA_RETURN_IF_ERROR(
      SortPairs(workspace, stream, keys, sorted, positions, sorted_positions, n, bits));
  // The unsorted positions are not needed any more.
  int32_t* const group_of = positions;
  TWML_CUDA_RETURN_IF_ERROR(
      InclusiveSum(workspace, stream, IsFirstOfGroup<Key>{sorted}, group_of, n));
  TWML_LAUNCH((WriteGroups<Key>), BlocksFor(n), kThreads, stream, sorted, sorted_positions, rows,
              group_of, batch, input_dim, groups);
  return 0;
}

template <class Id>
int GroupIds(Workspace* workspace, const TwmlCudaCall& call, const TwmlCudaBatch& batch,
             int64_t input_dim, const TwmlCudaGroups& groups) {
  // Narrow ids of a wider space are all in range, unless they are negative.
  constexpr int64_t kIdSpace = sizeof(Id) == 4 ? int64_t{1} << 31 : int64_t{1} << 62;
  const int64_t limit = input_dim < kIdSpace ? input_dim : kIdSpace;
  int bits = 1;
  while (bits < 63 && limit >> bits != 0) ++bits;
  return bits <= 32 ? GroupIds<Id, uint32_t>(workspace, call, batch, limit, bits, groups)
                    : GroupIds<Id, uint64_t>(workspace, call, batch, limit, bits, groups);
}

}  // namespace

int GroupById(Workspace* workspace, const TwmlCudaCall& call, const TwmlCudaBatch& batch,
              int64_t input_dim, const TwmlCudaGroups& groups) {
  const int64_t n = batch.num_entries;
  if (n > std::numeric_limits<int32_t>::max() ||
      batch.num_rows > std::numeric_limits<int32_t>::max()) {
    return TWML_CUDA_TOO_LARGE;
  }
  if (n == 0 || batch.num_rows == 0) {
    const cudaStream_t stream = StreamOf(call);
    if (batch.row_splits != nullptr && batch.num_rows > 0) {
      TWML_LAUNCH(CheckAllSplits, BlocksFor(batch.num_rows), kThreads, stream, batch.row_splits,
                  batch.num_rows, n, &call.errors->bad_splits);
    }
    TWML_CUDA_RETURN_IF_ERROR(CodeOf(cudaMemsetAsync(groups.splits, 0, sizeof(int64_t), stream)));
    return CodeOf(cudaMemsetAsync(groups.num_groups, 0, sizeof(int64_t), stream));
  }
  return batch.wide_ids ? GroupIds<int64_t>(workspace, call, batch, input_dim, groups)
                        : GroupIds<int32_t>(workspace, call, batch, input_dim, groups);
}

}  // namespace twml::cuda

extern "C" __attribute__((visibility("default"))) int twml_cuda_group_batch(
    const TwmlCudaCall* call, const TwmlCudaBatch* batch, int64_t input_dim,
    const TwmlCudaGroups* groups) {
  twml::cuda::Workspace workspace(*call);
  return twml::cuda::GroupById(&workspace, *call, *batch, input_dim, *groups);
}

namespace twml::cuda {
namespace {

template <class Id>
__global__ void ConvertIds(const int64_t* ids, int64_t n, Id* out) {
  for (int64_t k = ThreadIndex(); k < n; k += NumThreads()) out[k] = static_cast<Id>(ids[k]);
}

}  // namespace
}  // namespace twml::cuda

extern "C" __attribute__((visibility("default"))) int twml_cuda_copy_ids(void* stream,
                                                                         const int64_t* ids,
                                                                         int64_t n, int wide,
                                                                         void* out) {
  using namespace twml::cuda;
  const auto s = static_cast<cudaStream_t>(stream);
  if (n == 0) return 0;
  if (wide) {
    TWML_LAUNCH((ConvertIds<int64_t>), BlocksFor(n), kThreads, s, ids, n,
                static_cast<int64_t*>(out));
  } else {
    TWML_LAUNCH((ConvertIds<int32_t>), BlocksFor(n), kThreads, s, ids, n,
                static_cast<int32_t*>(out));
  }
  return 0;
}
