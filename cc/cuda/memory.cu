// Memory of the device, and the reports of bad input.
#include "cc/cuda/platform.h"
#include "cc/cuda/twml_cuda.h"
#include "cc/cuda/workspace.h"

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

TWML_API int twml_cuda_copy_async(void* stream, void* to, const void* from, size_t bytes) {
  return static_cast<int>(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

TWML_API int twml_cuda_synchronize(void* stream) {
  return static_cast<int>(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

// The reports of a device, and what the host has seen of them.
struct TwmlCudaReports {
  TwmlCudaErrors* device;
  TwmlCudaErrors* host;  // pinned
};

TWML_API int twml_cuda_reports_reset(TwmlCudaReports* reports, void* stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  *reports->host = {0, ~0ull, 0, 0, 0};
  TWML_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(reports->device, 0, sizeof(TwmlCudaErrors), s));
  return static_cast<int>(cudaMemsetAsync(&reports->device->first_bad_id, 0xff,
                                          sizeof(reports->device->first_bad_id), s));
}

TWML_API TwmlCudaReports* twml_cuda_reports_new(void* stream) {
  void *device = nullptr, *host = nullptr;
  if (cudaMalloc(&device, sizeof(TwmlCudaErrors)) != cudaSuccess) return nullptr;
  if (cudaMallocHost(&host, sizeof(TwmlCudaErrors)) != cudaSuccess) {
    cudaFree(device);
    return nullptr;
  }
  auto* reports =
      new TwmlCudaReports{static_cast<TwmlCudaErrors*>(device), static_cast<TwmlCudaErrors*>(host)};
  twml_cuda_reports_reset(reports, stream);
  return reports;
}

TWML_API TwmlCudaErrors* twml_cuda_reports_device(TwmlCudaReports* reports) {
  return reports->device;
}

TWML_API int twml_cuda_reports_fetch(TwmlCudaReports* reports, void* stream) {
  return twml_cuda_copy_async(stream, reports->host, reports->device, sizeof(TwmlCudaErrors));
}

TWML_API TwmlCudaErrors twml_cuda_reports_seen(const TwmlCudaReports* reports) {
  // The device writes it at any time.
  const volatile TwmlCudaErrors* host = reports->host;
  return {host->bad_ids, host->first_bad_id, host->bad_splits, host->bad_values, host->unknown_ids};
}
