#include "cc/core/online_standardize.h"
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

constexpr int kMoments = 2, kBias = 3;

static_assert(sizeof(Moments) == 3 * sizeof(double), "a row of the moments");

Status CheckMoments(const Tensor& t) {
  if (t.dims() == 2 && t.dim_size(1) == 3) return Status();
  return Invalid("moments must have the shape [N, 3], got ", t.shape().DebugString());
}

// Both locks on one variable would wait for each other.
absl::Status CheckDistinct(OpKernelContext* ctx) {
  tensorflow::core::RefCountPtr<Var> moments, bias;
  TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, kMoments), &moments));
  TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, kBias), &bias));
  if (moments.get() != bias.get()) return absl::OkStatus();
  return absl::InvalidArgumentError("moments and bias must be different variables");
}

template <class Id>
class OnlineStandardizeOp : public OpKernel {
 public:
  explicit OnlineStandardizeOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string nonfinite;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_bias", &num_bias_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &options_.epsilon));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("clip", &options_.clip));
    float decay;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("decay", &decay));
    options_.decay = decay;
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
      ReadTable moments;
      TF_RETURN_IF_ERROR(moments.Open(ctx, kMoments, "moments", Stored::kFloat64));
      TF_RETURN_IF_ERROR(ToTf(CheckMoments(moments.tensor())));
      const Span<const Moments> m(
          reinterpret_cast<const Moments*>(moments.tensor().flat<double>().data()),
          moments.tensor().dim_size(0));
      return ToTf(Standardize(batch, m, bias, options_, IeeeIntraOp(ctx), out));
    }
    WriteTables moments;
    TF_RETURN_IF_ERROR(moments.Open(ctx, kMoments, 1, Stored::kFloat64));
    TF_RETURN_IF_ERROR(ToTf(CheckMoments(moments.tensor(0))));
    double* data;
    TF_RETURN_IF_ERROR(moments.Writable(ctx, 0, &data));
    const Span<Moments> m(reinterpret_cast<Moments*>(data), moments.tensor(0).dim_size(0));
    return ToTf(StandardizeTraining(batch, m, bias, options_, IeeeIntraOp(ctx), out));
  }

  StandardizeOptions options_;
  int num_bias_;
};

REGISTER_KERNEL_BUILDER(
    Name("Twml>OnlineStandardize").Device(DEVICE_CPU).TypeConstraint<int32_t>("T"),
    OnlineStandardizeOp<int32_t>);
REGISTER_KERNEL_BUILDER(
    Name("Twml>OnlineStandardize").Device(DEVICE_CPU).TypeConstraint<int64_t>("T"),
    OnlineStandardizeOp<int64_t>);

}  // namespace
}  // namespace twml
