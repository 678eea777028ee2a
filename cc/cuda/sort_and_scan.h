// The two algorithms that come from libraries: CUB on GPUs, the standard library in tests.
#ifndef TWML_CUDA_SORT_AND_SCAN_H_
#define TWML_CUDA_SORT_AND_SCAN_H_

#include <cstdint>

#include "cc/cuda/platform.h"
#include "cc/cuda/workspace.h"

#if defined(TWML_CUDA_EMULATION)
#include <algorithm>
#include <numeric>
#else
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#endif

namespace twml::cuda {

// Sorts n < 2^31 pairs by the lower `bits` bits of their keys, whose other bits are 0. The sort is
// stable.
template <class Key>
int SortPairs(Workspace* workspace, cudaStream_t stream, const Key* keys, Key* sorted_keys,
              const int32_t* items, int32_t* sorted_items, int64_t n, int bits) {
#if defined(TWML_CUDA_EMULATION)
  int32_t* order = workspace->Allocate<int32_t>(n);
  if (!workspace->ok()) return TWML_CUDA_OUT_OF_MEMORY;
  const Key mask = static_cast<Key>(~Key{0}) >> (8 * sizeof(Key) - bits);
  return CodeOf(TWML_EMULATION_QUEUE(stream, [=] {
    std::iota(order, order + n, 0);
    std::stable_sort(order, order + n,
                     [&](int32_t a, int32_t b) { return (keys[a] & mask) < (keys[b] & mask); });
    for (int64_t i = 0; i < n; ++i) {
      sorted_keys[i] = keys[order[i]];
      sorted_items[i] = items[order[i]];
    }
  }));
#else
  size_t bytes = 0;
  const auto sort = [&](void* memory) {
    return CodeOf(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted_keys, items,
                                                  sorted_items, static_cast<int>(n), 0, bits,
                                                  stream));
  };
  TWML_CUDA_RETURN_IF_ERROR(sort(nullptr));
  void* memory = workspace->Allocate<char>(bytes);
  if (!workspace->ok()) return TWML_CUDA_OUT_OF_MEMORY;
  return sort(memory);
#endif
}

// sums[i] = item(0) + ... + item(i), for i < n.
template <class Item, class Sum>
int InclusiveSum(Workspace* workspace, cudaStream_t stream, const Item& item, Sum* sums,
                 int64_t n) {
#if defined(TWML_CUDA_EMULATION)
  (void)workspace;
  return CodeOf(TWML_EMULATION_QUEUE(stream, [=] {
    Sum sum = 0;
    for (int64_t i = 0; i < n; ++i) sums[i] = sum += item(i);
  }));
#else
  const auto items =
      thrust::make_transform_iterator(thrust::make_counting_iterator(int64_t{0}), item);
  size_t bytes = 0;
  const auto scan = [&](void* memory) {
    return CodeOf(
        cub::DeviceScan::InclusiveSum(memory, bytes, items, sums, static_cast<int>(n), stream));
  };
  TWML_CUDA_RETURN_IF_ERROR(scan(nullptr));
  void* memory = workspace->Allocate<char>(bytes);
  if (!workspace->ok()) return TWML_CUDA_OUT_OF_MEMORY;
  return scan(memory);
#endif
}

}  // namespace twml::cuda

#endif  // TWML_CUDA_SORT_AND_SCAN_H_
