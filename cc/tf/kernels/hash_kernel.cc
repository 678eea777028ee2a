#include "cc/core/hash.h"
#include "cc/tf/kernels/common.h"

namespace twml {
namespace {

template <class Id>
class HashIdsOp : public OpKernel {
 public:
  explicit HashIdsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("bits", &bits_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("salt", &salt_));
  }

  void Compute(OpKernelContext* ctx) override {
    Tensor* out;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(0).shape(), &out));
    OP_REQUIRES_OK(ctx, ToTf(HashIds(SpanOf<Id>(ctx->input(0)), bits_, salt_, IntraOp(ctx),
                                     out->flat<int64_t>().data())));
  }

 private:
  int64_t bits_, salt_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>HashIds").Device(DEVICE_CPU).TypeConstraint<int32_t>("T"),
                        HashIdsOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("Twml>HashIds").Device(DEVICE_CPU).TypeConstraint<int64_t>("T"),
                        HashIdsOp<int64_t>);

}  // namespace
}  // namespace twml
