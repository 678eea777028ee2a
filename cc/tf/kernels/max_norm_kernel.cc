#include "cc/core/max_norm.h"
#include "cc/tf/kernels/common.h"
#include "cc/tf/kernels/table.h"

namespace twml {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

constexpr int kMaxAbs = 2, kBias = 3;

// Both locks on one variable would wait for each other.
absl::Status CheckDistinct(OpKernelContext* ctx) {
  tensorflow::core::RefCountPtr<Var> max_abs, bias;
  TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, kMaxAbs), &max_abs));
  TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, kBias), &bias));
  if (max_abs.get() != bias.get()) return absl::OkStatus();
  return absl::InvalidArgumentError("max_abs and bias must be different variables");
}

template <class Id>
class MaxNormOp : public OpKernel {
 public:
  explicit MaxNormOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string nonfinite;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_bias", &num_bias_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &options_.epsilon));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("decay", &options_.decay));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("nonfinite", &nonfinite));
    OP_REQUIRES(ctx, num_bias_ <= 1,
                absl::InvalidArgumentError(
                    absl::StrCat("bias must be one variable or none, got ", num_bias_)));
    options_.nonfinite = nonfinite == "zero" ? NonFinite::kZero : NonFinite::kError;
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  absl::Status Run(OpKernelContext* ctx) {
    const Tensor& training = ctx->input(kBias + num_bias_);
    TF_RETURN_IF_ERROR(ToTf(CheckRank(ctx->input(0), 1, "ids")));
    TF_RETURN_IF_ERROR(ToTf(CheckRank(ctx->input(1), 1, "values")));
    TF_RETURN_IF_ERROR(ToTf(CheckRank(training, 0, "training")));
    const MaxNormBatch<Id> batch{SpanOf<Id>(ctx->input(0)), SpanOf<float>(ctx->input(1))};
    Tensor *y, *scale;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, ctx->input(1).shape(), &y));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, ctx->input(1).shape(), &scale));
    const MaxNormOut out{y->flat<float>().data(), scale->flat<float>().data()};

    ReadTable bias_table;
    Span<const float> bias_span;
    if (num_bias_ == 1) {
      TF_RETURN_IF_ERROR(CheckDistinct(ctx));
      TF_RETURN_IF_ERROR(bias_table.Open(ctx, kBias, "bias"));
      TF_RETURN_IF_ERROR(ToTf(CheckRank(bias_table.tensor(), 1, "bias")));
      bias_span = SpanOf<float>(bias_table.tensor());
    }
    const Span<const float>* bias = num_bias_ == 1 ? &bias_span : nullptr;
    if (!training.scalar<bool>()()) {
      ReadTable max_abs;
      TF_RETURN_IF_ERROR(max_abs.Open(ctx, kMaxAbs, "max_abs"));
      TF_RETURN_IF_ERROR(ToTf(CheckRank(max_abs.tensor(), 1, "max_abs")));
      return ToTf(
          MaxNorm(batch, SpanOf<float>(max_abs.tensor()), bias, options_, IeeeIntraOp(ctx), out));
    }
    WriteTables max_abs;
    TF_RETURN_IF_ERROR(max_abs.Open(ctx, kMaxAbs, 1));
    TF_RETURN_IF_ERROR(ToTf(CheckRank(max_abs.tensor(0), 1, "max_abs")));
    float* data;
    TF_RETURN_IF_ERROR(max_abs.Writable(ctx, 0, &data));
    const Span<float> m(data, max_abs.tensor(0).NumElements());
    return ToTf(MaxNormTraining(batch, m, bias, options_, IeeeIntraOp(ctx), out));
  }

  MaxNormOptions options_;
  int num_bias_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>MaxNorm").Device(DEVICE_CPU).TypeConstraint<int32_t>("T"),
                        MaxNormOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("Twml>MaxNorm").Device(DEVICE_CPU).TypeConstraint<int64_t>("T"),
                        MaxNormOp<int64_t>);

}  // namespace
}  // namespace twml
