#include "cc/core/hash.h"
#include "cc/core/int8_rows.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

class RowsToInt8Op : public Kernel {
 public:
  explicit RowsToInt8Op(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("stream", &stream_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("at_random", &at_random_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor &rows = ctx->input(0), &seed = ctx->input(1);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(rows, 2, "rows")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(seed, 0, "seed")));
    Tensor *codes, *scales;
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, 0, "codes", {rows.dim_size(0), rows.dim_size(1)}, &codes));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, "scales", {rows.dim_size(0)}, &scales));
    const uint64_t of_call = HashPair(stream_, seed.scalar<int64_t>()());
    RowsToInt8(MatrixIn<float>(rows), at_random_ ? &of_call : nullptr, IntraOp(ctx),
               codes->flat<int8_t>().data(), scales->flat<float>().data());
    return absl::OkStatus();
  }

  int64_t stream_;
  bool at_random_;
};

class RowsFromInt8Op : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor &codes = ctx->input(0), &scales = ctx->input(1);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(codes, 2, "codes")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(scales, 1, "scales")));
    if (scales.dim_size(0) != codes.dim_size(0)) {
      return absl::InvalidArgumentError(absl::StrCat("scales must have an item for each of the ",
                                                     codes.dim_size(0), " rows of codes, got ",
                                                     scales.dim_size(0)));
    }
    Tensor* rows;
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, 0, "rows", {codes.dim_size(0), codes.dim_size(1)}, &rows));
    RowsFromInt8(MatrixIn<int8_t>(codes), scales.flat<float>().data(), IntraOp(ctx),
                 rows->flat<float>().data());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("Twml>RowsToInt8").Device(DEVICE_CPU), RowsToInt8Op);
REGISTER_KERNEL_BUILDER(Name("Twml>RowsFromInt8").Device(DEVICE_CPU), RowsFromInt8Op);

}  // namespace
}  // namespace twml
