#include "cc/core/tree_sums.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

class TreeSumsOp : public Kernel {
 public:
  explicit TreeSumsOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_depth", &max_depth_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &roots = ctx->input(7);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(x, 2, "x")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(roots, 2, "roots")));
    Tensor* sums;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "sums", {x.dim_size(0)}, &sums));
    const TreeNodes nodes = {SpanOf<int32_t>(ctx->input(2)), SpanOf<float>(ctx->input(3)),
                             SpanOf<uint8_t>(ctx->input(4)), SpanOf<int32_t>(ctx->input(5)),
                             SpanOf<float>(ctx->input(6))};
    return ToAbslStatus(TreeSums(MatrixIn<float>(x), SpanOf<int64_t>(ctx->input(1)), nodes,
                                 MatrixIn<int32_t>(roots), max_depth_, IntraOpWithDenormals(ctx),
                                 sums->flat<float>().data()));
  }

  int64_t max_depth_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>TreeSums").Device(DEVICE_CPU), TreeSumsOp);

}  // namespace
}  // namespace twml
