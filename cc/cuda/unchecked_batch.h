// Access to batches that were not checked. Kernels skip bad entries and report them, and the caller
// reads the reports when it synchronizes with the stream.
#ifndef TWML_CUDA_UNCHECKED_BATCH_H_
#define TWML_CUDA_UNCHECKED_BATCH_H_

#include "cc/cuda/platform.h"
#include "cc/cuda/twml_cuda.h"

namespace twml::cuda {

__device__ inline void ReportBadId(TwmlCudaErrors* errors, int64_t position) {
  atomicAdd(&errors->bad_ids, 1ull);
  atomicMin(&errors->first_bad_id, static_cast<unsigned long long>(position));
}

struct Range {
  int64_t begin, end;
};

// The entries of a segment, which are within the batch whatever the splits are.
__device__ inline Range EntriesOf(const int64_t* splits, int64_t s, int64_t num_entries) {
  Range range = {splits[s], splits[s + 1]};
  if (range.begin < 0 || range.end > num_entries || range.begin > range.end) return {0, 0};
  return range;
}

// Counts the splits of segment s in `bad_splits` if they are not valid.
__device__ inline void CheckSplits(const int64_t* splits, int64_t s, int64_t num_segments,
                                   int64_t num_entries, unsigned long long* bad_splits) {
  const bool bad = splits[s] > splits[s + 1] || (s == 0 && splits[0] != 0) ||
                   (s == num_segments - 1 && splits[num_segments] != num_entries);
  if (bad) atomicAdd(bad_splits, 1ull);
}

[[maybe_unused]] static __global__ void CheckAllSplits(const int64_t* splits, int64_t num_rows,
                                                       int64_t num_entries,
                                                       unsigned long long* bad_splits) {
  for (int64_t b = ThreadIndex(); b < num_rows; b += NumThreads()) {
    CheckSplits(splits, b, num_rows, num_entries, bad_splits);
  }
}

// The last row that begins at or before entry k. It is one of the rows whatever the splits are.
__device__ inline int64_t RowOf(const int64_t* splits, int64_t num_rows, int64_t k) {
  int64_t low = 0, high = num_rows;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (splits[middle] <= k) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace twml::cuda

#endif  // TWML_CUDA_UNCHECKED_BATCH_H_
