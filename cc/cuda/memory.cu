// Memory of the device for tests and benchmarks, which call the library without TensorFlow.
#include "cc/cuda/platform.h"
#include "cc/cuda/twml_cuda.h"

#define TWML_API extern "C" __attribute__((visibility("default")))

TWML_API int twml_cuda_abi(void) { return TWML_CUDA_ABI; }

TWML_API int twml_cuda_num_devices(void) {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

TWML_API void* twml_cuda_allocate(size_t bytes) {
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}

TWML_API int twml_cuda_free(void* memory) { return static_cast<int>(cudaFree(memory)); }

TWML_API int twml_cuda_copy(void* to, const void* from, size_t bytes) {
  return static_cast<int>(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
