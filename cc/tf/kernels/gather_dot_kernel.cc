#include "cc/core/gather_dot.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

class GatherDotOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor &table = ctx->input(0), &positions = ctx->input(1), &vectors = ctx->input(2);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(table, 2, "table")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(positions, 2, "positions")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(vectors, 2, "vectors")));
    Tensor* products;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, positions.shape(), &products));
    return ToAbslStatus(GatherDot(MatrixIn<float>(table), MatrixIn<int64_t>(positions),
                                  MatrixIn<float>(vectors), IntraOp(ctx),
                                  products->flat<float>().data()));
  }
};

REGISTER_KERNEL_BUILDER(Name("Twml>GatherDot").Device(DEVICE_CPU), GatherDotOp);

}  // namespace
}  // namespace twml
