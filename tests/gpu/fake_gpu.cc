// A TensorFlow device of type GPU whose memory is the host's, for tests on machines without a GPU.
//
// TensorFlow places variables and ops on it, copies between it and the host, and refuses ops that
// have no kernel for GPUs, as on a machine with a GPU. Bytes that cross between the host and the
// devices are counted. Copies are synchronous, and nothing detects a kernel that reads the memory
// of the wrong side.
//
// A build of TensorFlow for CPUs has GPU kernels of control flow and variables only. For the ops in
// `kComputed` this file registers GPU kernels that run the kernels for CPUs.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

struct SP_Stream_st {};
struct SP_Event_st {};
struct SP_Timer_st {};

namespace {

constexpr int kDevices = 2;

// Traffic ----------------------------------------------------------------------------------------

std::atomic<int64_t> to_device{0}, to_host{0}, largest{0};

void Count(std::atomic<int64_t>& direction, uint64_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  direction += size;
  int64_t seen = largest;
  while (seen < size && !largest.compare_exchange_weak(seen, size)) {
  }
}

// Memory and streams -----------------------------------------------------------------------------

constexpr int64_t kMemory = int64_t{4} << 30;  // of each device

constexpr uint64_t kSmall = 1 << 20;
std::atomic<bool> is_full{false};  // then TensorFlow gets no memory for tensors of kSmall bytes
std::mutex in_use_mutex;
std::unordered_map<const void*, uint64_t>* const sizes =
    new std::unordered_map<const void*, uint64_t>;
int64_t in_use = 0;  // bytes of all devices together

void Ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void* Allocate(uint64_t size, uint64_t alignment) {
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

// TensorFlow gets the memory of each tensor from here. Its own allocator (BFC) would wait 10 s
// before it reports that memory has run out.
void* AllocateOnDevice(uint64_t size) {
  const std::lock_guard<std::mutex> lock(in_use_mutex);
  if (is_full && size >= kSmall) return nullptr;
  if (in_use + static_cast<int64_t>(size) > kMemory) return nullptr;
  void* const memory = Allocate(size, 256);
  if (memory == nullptr) return nullptr;
  in_use += static_cast<int64_t>(size);
  (*sizes)[memory] = size;
  return memory;
}

void FreeOnDevice(void* memory) {
  const std::lock_guard<std::mutex> lock(in_use_mutex);
  const auto found = sizes->find(memory);
  if (found == sizes->end()) return;
  in_use -= static_cast<int64_t>(found->second);
  sizes->erase(found);
  std::free(memory);
}

void FromHost(SP_DeviceMemoryBase* to, const void* from, uint64_t size, TF_Status* status) {
  std::memcpy(to->opaque, from, size);
  Count(to_device, size);
  Ok(status);
}

void ToHost(void* to, const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  std::memcpy(to, from->opaque, size);
  Count(to_host, size);
  Ok(status);
}

void Between(SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size,
             TF_Status* status) {
  std::memcpy(to->opaque, from->opaque, size);
  Ok(status);
}

void FillMemory(SP_StreamExecutor* e) {
  e->allocate = [](const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
    memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
    memory->opaque = AllocateOnDevice(size);
    memory->size = memory->opaque == nullptr ? 0 : size;
  };
  e->deallocate = [](const SP_Device*, SP_DeviceMemoryBase* memory) {
    FreeOnDevice(memory->opaque);
    memory->opaque = nullptr;
  };
  e->host_memory_allocate = [](const SP_Device*, uint64_t size) { return Allocate(size, 64); };
  e->host_memory_deallocate = [](const SP_Device*, void* memory) { std::free(memory); };
  e->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return 0; };
  e->device_memory_usage = [](const SP_Device*, int64_t* free, int64_t* total) -> TF_Bool {
    *free = *total = kMemory;
    return 1;
  };
  e->memcpy_dtoh = [](const SP_Device*, SP_Stream, void* to, const SP_DeviceMemoryBase* from,
                      uint64_t size, TF_Status* s) { ToHost(to, from, size, s); };
  e->memcpy_htod = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to, const void* from,
                      uint64_t size, TF_Status* s) { FromHost(to, from, size, s); };
  e->memcpy_dtod = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to,
                      const SP_DeviceMemoryBase* from, uint64_t size,
                      TF_Status* s) { Between(to, from, size, s); };
  e->sync_memcpy_dtoh = [](const SP_Device*, void* to, const SP_DeviceMemoryBase* from,
                           uint64_t size, TF_Status* s) { ToHost(to, from, size, s); };
  e->sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* to, const void* from,
                           uint64_t size, TF_Status* s) { FromHost(to, from, size, s); };
  e->sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to,
                           const SP_DeviceMemoryBase* from, uint64_t size,
                           TF_Status* s) { Between(to, from, size, s); };
  e->mem_zero = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* at, uint64_t size,
                   TF_Status* s) {
    std::memset(at->opaque, 0, size);
    Ok(s);
  };
  e->memset = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* at, uint8_t value, uint64_t size,
                 TF_Status* s) {
    std::memset(at->opaque, value, size);
    Ok(s);
  };
  e->memset32 = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* at, uint32_t value,
                   uint64_t size, TF_Status* s) {
    for (uint64_t i = 0; i < size / 4; ++i) static_cast<uint32_t*>(at->opaque)[i] = value;
    Ok(s);
  };
}

// Every call has done its work when it returns, so streams and events have nothing to wait for.
void FillStreams(SP_StreamExecutor* e) {
  e->create_stream = [](const SP_Device*, SP_Stream* stream, TF_Status* s) {
    *stream = new SP_Stream_st;
    Ok(s);
  };
  e->destroy_stream = [](const SP_Device*, SP_Stream stream) { delete stream; };
  e->create_stream_dependency = [](const SP_Device*, SP_Stream, SP_Stream, TF_Status* s) { Ok(s); };
  e->get_stream_status = [](const SP_Device*, SP_Stream, TF_Status* s) { Ok(s); };
  e->create_event = [](const SP_Device*, SP_Event* event, TF_Status* s) {
    *event = new SP_Event_st;
    Ok(s);
  };
  e->destroy_event = [](const SP_Device*, SP_Event event) { delete event; };
  e->get_event_status = [](const SP_Device*, SP_Event) { return SE_EVENT_COMPLETE; };
  e->record_event = [](const SP_Device*, SP_Stream, SP_Event, TF_Status* s) { Ok(s); };
  e->wait_for_event = [](const SP_Device*, SP_Stream, SP_Event, TF_Status* s) { Ok(s); };
  e->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status* s) {
    *timer = new SP_Timer_st;
    Ok(s);
  };
  e->destroy_timer = [](const SP_Device*, SP_Timer timer) { delete timer; };
  e->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status* s) { Ok(s); };
  e->stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status* s) { Ok(s); };
  e->block_host_for_event = [](const SP_Device*, SP_Event, TF_Status* s) { Ok(s); };
  e->block_host_until_done = [](const SP_Device*, SP_Stream, TF_Status* s) { Ok(s); };
  e->synchronize_all_activity = [](const SP_Device*, TF_Status* s) { Ok(s); };
  e->host_callback = [](const SP_Device*, SP_Stream, SE_StatusCallbackFn call, void* argument) {
    TF_Status* s = TF_NewStatus();
    call(argument, s);
    const TF_Bool ok = TF_GetCode(s) == TF_OK;
    TF_DeleteStatus(s);
    return ok;
  };
}

// Kernels ----------------------------------------------------------------------------------------

struct Computed {
  const char* op;
  std::vector<const char*> on_host;  // the arguments that GPU kernels want in host memory
};

const Computed kComputed[] = {
    {"Abs", {}},
    {"AddN", {}},
    {"AddV2", {}},
    {"BiasAdd", {}},
    {"BatchMatMulV2", {}},
    {"BiasAddGrad", {}},
    {"BroadcastTo", {"shape"}},
    {"Cast", {}},
    {"ClipByValue", {}},
    {"ConcatV2", {"axis"}},
    {"Cumsum", {"axis"}},
    {"DivNoNan", {}},
    {"Einsum", {}},
    {"Equal", {}},
    {"Exp", {}},
    {"Fill", {"dims"}},
    {"GatherNd", {}},
    {"GatherV2", {"axis"}},
    {"Greater", {}},
    {"GreaterEqual", {}},
    {"IsFinite", {}},
    {"IsNan", {}},
    {"L2Loss", {}},
    {"Less", {}},
    {"LessEqual", {}},
    {"Log", {}},
    {"Log1p", {}},
    {"LogicalAnd", {}},
    {"LogicalNot", {}},
    {"LogicalOr", {}},
    {"MatMul", {}},
    {"Maximum", {}},
    {"Mean", {"reduction_indices"}},
    {"Minimum", {}},
    {"Mul", {}},
    {"Neg", {}},
    {"NotEqual", {}},
    {"OnesLike", {}},
    {"Pack", {}},
    {"Pow", {}},
    {"RealDiv", {}},
    {"Reciprocal", {}},
    {"Relu", {}},
    {"ReluGrad", {}},
    {"ResourceGather", {"resource"}},
    {"ResourceScatterAdd", {"resource"}},
    {"ResourceScatterSub", {"resource"}},
    {"ResourceScatterUpdate", {"resource"}},
    {"Rsqrt", {}},
    {"ScatterNd", {"shape"}},
    {"Select", {}},
    {"SelectV2", {}},
    {"Sigmoid", {}},
    {"SigmoidGrad", {}},
    {"Slice", {"begin", "size"}},
    {"Softplus", {}},
    {"SoftplusGrad", {}},
    {"SparseTensorDenseMatMul", {}},
    {"Split", {"split_dim"}},
    {"SplitV", {"size_splits", "split_dim"}},
    {"Sqrt", {}},
    {"Square", {}},
    {"StridedSlice", {"begin", "end", "strides"}},
    {"StridedSliceGrad", {"shape", "begin", "end", "strides"}},
    {"SquaredDifference", {}},
    {"Sub", {}},
    {"Sum", {"reduction_indices"}},
    {"Tanh", {}},
    {"TanhGrad", {}},
    {"TensorScatterUpdate", {}},
    {"Tile", {"multiples"}},
    {"Transpose", {"perm"}},
    {"Unpack", {}},
    {"UnsortedSegmentSum", {"num_segments"}},
    {"Where", {}},
    {"ZerosLike", {}},
};

// GPU kernels of int32 work in host memory, and TensorFlow has them; of text there are none.
bool IsOnGpus(const tensorflow::KernelDef& kernel) {
  for (const auto& constraint : kernel.constraint()) {
    for (const int type : constraint.allowed_values().list().type()) {
      if (constraint.name() == "T" &&
          (type == tensorflow::DT_INT32 || type == tensorflow::DT_STRING ||
           type == tensorflow::DT_VARIANT || type == tensorflow::DT_RESOURCE)) {
        return false;
      }
    }
  }
  return true;
}

class RunsCpuKernel : public tensorflow::OpKernel {
 public:
  RunsCpuKernel(tensorflow::OpKernelConstruction* ctx, std::unique_ptr<tensorflow::OpKernel> kernel)
      : OpKernel(ctx), kernel_(std::move(kernel)) {}
  void Compute(tensorflow::OpKernelContext* ctx) override { kernel_->Compute(ctx); }

 private:
  std::unique_ptr<tensorflow::OpKernel> kernel_;
};

tensorflow::OpKernel* MakeKernel(tensorflow::OpKernelConstruction* ctx) {
  auto* device = static_cast<tensorflow::DeviceBase*>(ctx->device());
  absl::Status status;
  auto kernel = tensorflow::CreateOpKernel(tensorflow::DEVICE_CPU, device,
                                           device->GetAllocator(tensorflow::AllocatorAttributes()),
                                           ctx->def(), ctx->graph_def_version(), &status);
  if (!status.ok()) {
    ctx->SetStatus(status);
    return nullptr;
  }
  return new RunsCpuKernel(ctx, std::move(kernel));
}

}  // namespace

// What the test and TensorFlow call
// ----------------------------------------------------------------

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int64_t fake_gpu_bytes_to_device() { return to_device; }
EXPORTED int64_t fake_gpu_bytes_to_host() { return to_host; }
EXPORTED int64_t fake_gpu_largest_copy() { return largest; }
EXPORTED void fake_gpu_set_full(int full) { is_full = full != 0; }
EXPORTED void fake_gpu_reset() { to_device = to_host = largest = 0; }

EXPORTED void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  SP_Platform* platform = params->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = "FAKE";
  platform->type = "GPU";
  platform->use_bfc_allocator = 0;
  SP_PlatformFns* functions = params->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = [](const SP_Platform*, int* count, TF_Status* s) {
    *count = kDevices;
    Ok(s);
  };
  functions->create_device = [](const SP_Platform*, SE_CreateDeviceParams* made, TF_Status* s) {
    made->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    made->device->ordinal = made->ordinal;
    made->device->hardware_name = "fake GPU";
    made->device->device_vendor = "none";
    made->device->pci_bus_id = "0";
    Ok(s);
  };
  functions->destroy_device = [](const SP_Platform*, SP_Device*) {};
  functions->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* made,
                                    TF_Status* s) {
    made->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
    made->device_fns->get_numa_node = [](const SP_Device*) -> int32_t { return 0; };
    made->device_fns->get_memory_bandwidth = [](const SP_Device*) -> int64_t { return -1; };
    made->device_fns->get_gflops = [](const SP_Device*) -> double { return -1; };
    Ok(s);
  };
  functions->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  functions->create_stream_executor = [](const SP_Platform*, SE_CreateStreamExecutorParams* made,
                                         TF_Status* s) {
    made->stream_executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
    FillMemory(made->stream_executor);
    FillStreams(made->stream_executor);
    Ok(s);
  };
  functions->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  functions->create_timer_fns = [](const SP_Platform*, SP_TimerFns* timer, TF_Status* s) {
    timer->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    timer->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
    Ok(s);
  };
  functions->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  Ok(status);
}

EXPORTED void TF_InitKernel() {
  for (const Computed& computed : kComputed) {
    const tensorflow::KernelList kernels = tensorflow::GetRegisteredKernelsForOp(computed.op);
    for (const tensorflow::KernelDef& kernel : kernels.kernel()) {
      if (kernel.device_type() != tensorflow::DEVICE_CPU || !kernel.label().empty() ||
          !IsOnGpus(kernel)) {
        continue;
      }
      auto* gpu = new tensorflow::KernelDef(kernel);  // the registrar takes it
      gpu->set_device_type(tensorflow::DEVICE_GPU);
      gpu->clear_host_memory_arg();
      for (const char* argument : computed.on_host) gpu->add_host_memory_arg(argument);
      tensorflow::kernel_factory::OpKernelRegistrar(gpu, "FakeGpu", MakeKernel);
    }
  }
}
