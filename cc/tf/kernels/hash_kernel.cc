#include "cc/core/hash.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

template <class Id>
class HashIdsOp : public Kernel {
 public:
  explicit HashIdsOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("bits", &bits_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("salt", &salt_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Tensor* out;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "hashed", ctx->input(0).shape().dim_sizes(), &out));
    return ToAbslStatus(HashIds(SpanOf<Id>(ctx->input(0)), bits_, salt_, IntraOp(ctx),
                                out->flat<int64_t>().data()));
  }

  int64_t bits_, salt_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>HashIds").Device(DEVICE_CPU).TypeConstraint<int32_t>("T"),
                        HashIdsOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("Twml>HashIds").Device(DEVICE_CPU).TypeConstraint<int64_t>("T"),
                        HashIdsOp<int64_t>);

}  // namespace
}  // namespace twml
