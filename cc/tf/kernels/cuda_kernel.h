// The base of kernels for CUDA GPUs: the library that they call, their working memory, what they
// report, and their registration.
#ifndef TWML_TF_KERNELS_CUDA_KERNEL_H_
#define TWML_TF_KERNELS_CUDA_KERNEL_H_

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cc/tf/kernels/cuda_library.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"
#include "xla/stream_executor/stream.h"

namespace twml {

inline CudaLibrary cuda;
inline bool strict = false;  // whether every kernel waits for its reports

inline void* StreamOf(OpKernelContext* ctx) {
  return ctx->op_device_context()->stream()->platform_specific_handle().stream;
}

// The reports of each device. They are never deleted, because kernels that are still queued may
// write them.
inline TwmlCudaReports* ReportsOf(OpKernelContext* ctx) {
  static std::mutex mu;
  static auto* const reports = new std::map<std::string, TwmlCudaReports*>;
  const std::lock_guard<std::mutex> lock(mu);
  TwmlCudaReports*& found = (*reports)[ctx->device()->name()];
  if (found == nullptr) found = cuda.reports_new(StreamOf(ctx));
  return found;
}

inline absl::Status ErrorOf(const TwmlCudaErrors& errors) {
  std::vector<std::string> found;
  if (errors.bad_ids > 0) {
    found.push_back(absl::StrCat(errors.bad_ids, " ids are out of range, one of them is ids[",
                                 errors.first_bad_id, "]"));
  }
  if (errors.bad_splits > 0) {
    found.push_back(
        absl::StrCat(errors.bad_splits, " items of row_splits decrease or do not fit the entries"));
  }
  if (errors.bad_values > 0) {
    found.push_back(absl::StrCat(errors.bad_values, " values are not finite"));
  }
  if (errors.unknown_ids > 0) {
    found.push_back(absl::StrCat(errors.unknown_ids, " ids are not ids of adapted features"));
  }
  if (errors.bad_boundary_splits > 0) {
    found.push_back(
        absl::StrCat(errors.bad_boundary_splits,
                     " items of boundary_splits decrease or do not fit the boundaries"));
  }
  if (found.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("In this or an earlier step on the GPU, ", absl::StrJoin(found, "; "),
                   ". Their entries were skipped or passed on. TWML_OPS_CUDA_STRICT=1 reports them "
                   "in the op that has "
                   "them, and is slower"));
}

// Subclasses implement Queue, which queues work on the stream of the device.
class CudaKernel : public Kernel {
 public:
  using Kernel::Kernel;

 protected:
  // What kernels are called with. Working memory is kept until the call ends, after which only work
  // of the same stream can get it.
  struct Scope {
    OpKernelContext* ctx;
    TwmlCudaReports* reports;
    std::vector<Tensor> memory = {};
    std::string failure = "";
    TwmlCudaCall call = {};
    std::string table = "a table";  // for messages
  };

  virtual absl::Status Queue(OpKernelContext* ctx, Scope* scope) = 0;

  // The status of a code that the library has returned.
  absl::Status ToStatus(int code, const Scope& scope) const {
    if (code == 0) return absl::OkStatus();
    if (code == TWML_CUDA_TOO_LARGE) {
      return absl::InvalidArgumentError(
          "a batch must have less than 2^31 entries and rows on a GPU");
    }
    if (code == TWML_CUDA_OUT_OF_MEMORY) {
      return absl::ResourceExhaustedError(absl::StrCat("its working memory: ", scope.failure));
    }
    return absl::InternalError(
        absl::StrCat(type_string(), " failed on ", scope.table, " with CUDA error ", code));
  }

  // Copies an item from the device, and waits for it.
  absl::Status ReadItem(const int64_t* item, const Scope& scope, int64_t* out) const {
    void* const stream = StreamOf(scope.ctx);
    TF_RETURN_IF_ERROR(ToStatus(cuda.copy_async(stream, out, item, sizeof(*out)), scope));
    return ToStatus(cuda.synchronize(stream), scope);
  }

  // Copies the buffer of a variable if something else refers to it.
  absl::Status MakeWritable(tensorflow::Var* var, const Scope& scope) const {
    Tensor* const table = var->tensor();
    if (table->NumElements() == 0 || table->RefCountIsOne()) return absl::OkStatus();
    Tensor copy;
    TF_RETURN_IF_ERROR(scope.ctx->allocate_temp(table->dtype(), table->shape(), &copy));
    TF_RETURN_IF_ERROR(ToStatus(cuda.copy_async(StreamOf(scope.ctx), copy.data(), table->data(),
                                                static_cast<size_t>(table->TotalBytes())),
                                scope));
    *table = copy;
    return absl::OkStatus();
  }

 private:
  absl::Status Run(OpKernelContext* ctx) final {
    Scope scope{ctx, ReportsOf(ctx)};
    if (scope.reports == nullptr) {
      return absl::ResourceExhaustedError("no GPU memory for the reports of bad input");
    }
    // What earlier kernels have reported, as far as the host has seen it.
    TF_RETURN_IF_ERROR(Raise(scope));
    scope.call = {StreamOf(ctx), Allocate, &scope, cuda.reports_device(scope.reports)};
    const absl::Status queued = Queue(ctx, &scope);
    if (absl::IsResourceExhausted(queued)) return WithTable(queued, scope.table);
    TF_RETURN_IF_ERROR(queued);
    TF_RETURN_IF_ERROR(ToStatus(cuda.reports_fetch(scope.reports, StreamOf(ctx)), scope));
    if (!strict) return absl::OkStatus();
    TF_RETURN_IF_ERROR(ToStatus(cuda.synchronize(StreamOf(ctx)), scope));
    return Raise(scope);
  }

  // The error of a kernel that ran out of memory. It names the table and a remedy.
  absl::Status WithTable(const absl::Status& status, const std::string& table) const {
    return absl::ResourceExhaustedError(
        absl::StrCat(type_string(), " '", name(), "' of ", table, " ran out of memory on the GPU: ",
                     status.message(), ". placement=\"host\" keeps it in the memory of the host"));
  }

  // Returns the error that the host has seen in the reports, and clears them.
  absl::Status Raise(const Scope& scope) const {
    if (ErrorOf(cuda.reports_seen(scope.reports)).ok()) return absl::OkStatus();
    static std::mutex mu;
    const std::lock_guard<std::mutex> lock(mu);
    // The host may have seen a part of the reports, and another op may have raised the error.
    void* const stream = StreamOf(scope.ctx);
    TF_RETURN_IF_ERROR(ToStatus(cuda.synchronize(stream), scope));
    const absl::Status status = ErrorOf(cuda.reports_seen(scope.reports));
    TF_RETURN_IF_ERROR(ToStatus(cuda.reports_reset(scope.reports, stream), scope));
    return status;
  }

  static void* Allocate(void* user, size_t bytes) {
    auto* scope = static_cast<Scope*>(user);
    Tensor memory;
    const absl::Status status = scope->ctx->allocate_temp(
        tensorflow::DT_INT8, TensorShape({static_cast<int64_t>(bytes)}), &memory);
    if (!status.ok()) {
      scope->failure = std::string(status.message());
      return nullptr;
    }
    scope->memory.push_back(memory);
    return memory.data();
  }
};

// Registers a kernel for GPUs. The arguments of `on_host` are in the memory of the host.
template <class Op>
void RegisterCuda(const char* name, const std::vector<const char*>& on_host,
                  tensorflow::DataType ids = tensorflow::DT_INVALID) {
  tensorflow::KernelDefBuilder builder(name);
  builder.Device(tensorflow::DEVICE_GPU);
  if (ids != tensorflow::DT_INVALID) builder.TypeConstraint("T", ids);
  for (const char* argument : on_host) builder.HostMemory(argument);
  tensorflow::kernel_factory::OpKernelRegistrar(
      builder.Build(), "TwmlCuda",
      [](OpKernelConstruction* ctx) -> tensorflow::OpKernel* { return new Op(ctx); });
}

// The same for an op with a kernel for each type of ids.
template <template <class Id> class Op>
void RegisterCudaForIds(const char* name, const std::vector<const char*>& on_host) {
  RegisterCuda<Op<int32_t>>(name, on_host, tensorflow::DT_INT32);
  RegisterCuda<Op<int64_t>>(name, on_host, tensorflow::DT_INT64);
}

void RegisterFeatureKernels();

}  // namespace twml

#endif  // TWML_TF_KERNELS_CUDA_KERNEL_H_
