// A part of a warp that works on one segment: a power of two of neighboring lanes.
#ifndef TWML_CUDA_TILE_H_
#define TWML_CUDA_TILE_H_

#include "cc/cuda/platform.h"

namespace twml::cuda {

struct Tile {
  int width;
  int lane;       // within the tile
  unsigned mask;  // its lanes within the warp

  __device__ explicit Tile(int width)
      : width(width),
        lane(static_cast<int>(threadIdx.x) & (width - 1)),
        mask(width == kWarp ? kFullMask
                            : ((1u << width) - 1) << ((threadIdx.x % kWarp) & ~(width - 1))) {}

  // A tile of a warp whose lanes all do the same, so that one instruction serves all of its tiles.
  static __device__ Tile InStep(int width) {
    Tile tile(width);
    tile.mask = kFullMask;
    return tile;
  }

  // The value of lane `from` of the tile.
  template <class T>
  __device__ T Shuffle(T value, int from) const {
    return __shfl_sync(mask, value, from, width);
  }

  // The number of this tile among the tiles of all blocks, and how many there are.
  __device__ int64_t Index() const { return ThreadIndex() / width; }
  __device__ int64_t Count() const { return NumThreads() / width; }
};

}  // namespace twml::cuda

#endif  // TWML_CUDA_TILE_H_
