#include "cc/core/find_keys.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

class FindKeysOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& keys = ctx->input(1);
    Tensor* positions;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, keys.shape(), &positions));
    FindKeys(SpanOf<int64_t>(ctx->input(0)), SpanOf<int64_t>(keys), IntraOp(ctx),
             positions->flat<int64_t>().data());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("Twml>FindKeys").Device(DEVICE_CPU), FindKeysOp);

}  // namespace
}  // namespace twml
