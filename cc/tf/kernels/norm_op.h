// The kernel of the running normalizations: entries in, normalized entries out, by a state that
// training updates in place.
#ifndef TWML_TF_KERNELS_NORM_OP_H_
#define TWML_TF_KERNELS_NORM_OP_H_

#include <string>

#include "cc/core/norm.h"
#include "cc/tf/kernels/common.h"
#include "cc/tf/kernels/table.h"

namespace twml {

// Norm names its Options, the Row that is known of a feature, the state's name and how it is
// stored; and it has CheckState, ReadAttributes (beside epsilon and nonfinite), Infer and Train.
template <class Id, class Norm>
class NormOp : public tensorflow::OpKernel {
 public:
  explicit NormOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string nonfinite;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_bias", &num_bias_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &options_.epsilon));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("nonfinite", &nonfinite));
    OP_REQUIRES_OK(ctx, Norm::ReadAttributes(ctx, &options_));
    OP_REQUIRES(ctx, num_bias_ <= 1,
                absl::InvalidArgumentError(
                    absl::StrCat("bias must be one variable or none, got ", num_bias_)));
    options_.nonfinite = nonfinite == "zero" ? NonFinite::kZero : NonFinite::kError;
  }

  void Compute(tensorflow::OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  static constexpr int kState = 2, kBias = 3;
  using Row = typename Norm::Row;

  // Both locks on one variable would wait for each other.
  static absl::Status CheckDistinct(tensorflow::OpKernelContext* ctx) {
    tensorflow::core::RefCountPtr<tensorflow::Var> state, bias;
    TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, kState), &state));
    TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, kBias), &bias));
    if (state.get() != bias.get()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(Norm::kName, " and bias must be different variables"));
  }

  absl::Status Run(tensorflow::OpKernelContext* ctx) {
    const tensorflow::Tensor& training = ctx->input(kBias + num_bias_);
    TF_RETURN_IF_ERROR(ToTf(CheckRank(ctx->input(0), 1, "ids")));
    TF_RETURN_IF_ERROR(ToTf(CheckRank(ctx->input(1), 1, "values")));
    TF_RETURN_IF_ERROR(ToTf(CheckRank(training, 0, "training")));
    const NormBatch<Id> batch{SpanOf<Id>(ctx->input(0)), SpanOf<float>(ctx->input(1))};
    tensorflow::Tensor *y, *scale;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, ctx->input(1).shape(), &y));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, ctx->input(1).shape(), &scale));
    const NormOut out{y->flat<float>().data(), scale->flat<float>().data()};

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
      ReadTable state;
      TF_RETURN_IF_ERROR(state.Open(ctx, kState, Norm::kName, Norm::kStored));
      TF_RETURN_IF_ERROR(ToTf(Norm::CheckState(state.tensor())));
      const Span<const Row> rows(static_cast<const Row*>(state.tensor().data()),
                                 state.tensor().dim_size(0));
      return ToTf(Norm::Infer(batch, rows, bias, options_, IeeeIntraOp(ctx), out));
    }
    WriteTables state;
    TF_RETURN_IF_ERROR(state.Open(ctx, kState, 1, Norm::kStored));
    TF_RETURN_IF_ERROR(ToTf(Norm::CheckState(state.tensor(0))));
    Row* data;
    TF_RETURN_IF_ERROR(state.Writable(ctx, 0, &data));
    const Span<Row> rows(data, state.tensor(0).dim_size(0));
    return ToTf(Norm::Train(batch, rows, bias, options_, IeeeIntraOp(ctx), out));
  }

  typename Norm::Options options_;
  int num_bias_;
};

#define TWML_REGISTER_NORM(name, Norm)                                                            \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<int32_t>("T"), \
                          NormOp<int32_t, Norm>);                                                 \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<int64_t>("T"), \
                          NormOp<int64_t, Norm>)

}  // namespace twml

#endif  // TWML_TF_KERNELS_NORM_OP_H_
