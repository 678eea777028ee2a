// Memory of the device, and the reports of bad input.
#include "cc/cuda/platform.h"
#include "cc/cuda/twml_cuda.h"
#include "cc/cuda/workspace.h"

#define TWML_API extern "C" __attribute__((visibility("default")))

TWML_API int twml_cuda_abi(void) { return TWML_CUDA_ABI; }

TWML_API int twml_cuda_num_devices(void) {
  int count = 0;
  return twml::cuda::CodeOf(cudaGetDeviceCount(&count)) == 0 ? count : 0;
}

TWML_API void* twml_cuda_allocate(size_t bytes) {
  void* memory = nullptr;
  return twml::cuda::CodeOf(cudaMalloc(&memory, bytes)) == 0 ? memory : nullptr;
}

TWML_API int twml_cuda_free(void* memory) { return twml::cuda::CodeOf(cudaFree(memory)); }

TWML_API int twml_cuda_copy(void* to, const void* from, size_t bytes) {
  return twml::cuda::CodeOf(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

TWML_API int twml_cuda_copy_async(void* stream, void* to, const void* from, size_t bytes) {
  return twml::cuda::CodeOf(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

TWML_API int twml_cuda_synchronize(void* stream) {
  return twml::cuda::CodeOf(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

// The reports of a device, and what the host has seen of them.
struct TwmlCudaReports {
  TwmlCudaErrors* device;
  TwmlCudaErrors* host;  // pinned
};

// Waits for the stream, because copies that are queued would bring the old reports back.
TWML_API int twml_cuda_reports_reset(TwmlCudaReports* reports, void* stream) {
  using twml::cuda::CodeOf;
  const auto s = static_cast<cudaStream_t>(stream);
  TWML_CUDA_RETURN_IF_ERROR(CodeOf(cudaStreamSynchronize(s)));
  TWML_CUDA_RETURN_IF_ERROR(CodeOf(cudaMemsetAsync(reports->device, 0, sizeof(TwmlCudaErrors), s)));
  TWML_CUDA_RETURN_IF_ERROR(CodeOf(cudaMemsetAsync(&reports->device->first_bad_id, 0xff,
                                                   sizeof(reports->device->first_bad_id), s)));
  *reports->host = {0, ~0ull, 0, 0, 0, 0};
  return 0;
}

TWML_API TwmlCudaReports* twml_cuda_reports_new(void* stream) {
  using twml::cuda::CodeOf;
  void *device = nullptr, *host = nullptr;
  if (CodeOf(cudaMalloc(&device, sizeof(TwmlCudaErrors))) != 0) return nullptr;
  if (CodeOf(cudaMallocHost(&host, sizeof(TwmlCudaErrors))) == 0) {
    auto* reports = new TwmlCudaReports{static_cast<TwmlCudaErrors*>(device),
                                        static_cast<TwmlCudaErrors*>(host)};
    if (twml_cuda_reports_reset(reports, stream) == 0) return reports;
    delete reports;
    (void)CodeOf(cudaFreeHost(host));
  }
  (void)CodeOf(cudaFree(device));
  return nullptr;
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
  return {host->bad_ids,    host->first_bad_id, host->bad_splits,
          host->bad_values, host->unknown_ids,  host->bad_boundary_splits};
}
