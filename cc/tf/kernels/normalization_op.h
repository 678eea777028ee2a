// The kernel of the running normalizations. It normalizes entries with a state that training
// updates in place.
#ifndef TWML_TF_KERNELS_NORMALIZATION_OP_H_
#define TWML_TF_KERNELS_NORMALIZATION_OP_H_

#include <string>

#include "cc/core/normalization.h"
#include "cc/tf/kernels/batch_groups.h"
#include "cc/tf/kernels/changed_rows.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {

// Norm defines the types Options and Row (one row of the state), the state's kName and kDType, and
// the functions CheckState, ReadAttributes (for attributes other than epsilon and nonfinite), Infer
// and Train.
template <class Id, class Norm>
class NormOp : public Kernel {
 public:
  explicit NormOp(tensorflow::OpKernelConstruction* ctx) : Kernel(ctx) {
    std::string nonfinite;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_bias", &num_bias_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &options_.epsilon));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("nonfinite", &nonfinite));
    OP_REQUIRES_OK(ctx, Norm::ReadAttributes(ctx, &options_));
    OP_REQUIRES(ctx, num_bias_ <= 1,
                absl::InvalidArgumentError(
                    absl::StrCat("bias must be one variable or none, got ", num_bias_)));
    options_.nonfinite = nonfinite == "zero" ? NonFinitePolicy::kZero : NonFinitePolicy::kError;
  }

 private:
  static constexpr int kState = 2, kBias = 3;
  using Row = typename Norm::Row;

  absl::Status Run(tensorflow::OpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(kBias + num_bias_), 0, "training")));
    const bool training = ctx->input(kBias + num_bias_).scalar<bool>()();
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(0), 1, "ids")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(1), 1, "values")));
    const GroupedBatch<Id>* groups;
    TF_RETURN_IF_ERROR(ReadGroups(ctx, &groups));
    const NormBatch<Id> batch{SpanOf<Id>(ctx->input(0)), SpanOf<float>(ctx->input(1)), groups};
    const int64_t entries = batch.values.size();
    tensorflow::Tensor *y, *scale;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "output", {entries}, &y));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, "scale", {entries}, &scale));
    const NormOutput out{y->flat<float>().data(), scale->flat<float>().data()};

    LockedTables tables;  // the state, and the bias if there is one
    TF_RETURN_IF_ERROR(tables.Add(ctx, kState, 1, training ? Access::kUpdate : Access::kRead));
    TF_RETURN_IF_ERROR(tables.Add(ctx, kBias, num_bias_, Access::kRead));
    if (!tables.distinct()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Norm::kName, " and bias must be different variables"));
    }
    tables.Lock();
    Span<const float> bias_span;
    if (num_bias_ == 1) {
      TF_RETURN_IF_ERROR(CheckTable(tables.tensor(1), "bias"));
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(tables.tensor(1), 1, "bias")));
      bias_span = SpanOf<float>(tables.tensor(1));
    }
    const Span<const float>* bias = num_bias_ == 1 ? &bias_span : nullptr;
    TF_RETURN_IF_ERROR(CheckTable(tables.tensor(0), Norm::kName, Norm::kDType));
    TF_RETURN_IF_ERROR(ToAbslStatus(Norm::CheckState(tables.tensor(0))));
    const int64_t features = tables.tensor(0).dim_size(0);
    if (!training) {
      const Span<const Row> rows(static_cast<const Row*>(tables.tensor(0).data()), features);
      return ToAbslStatus(Norm::Infer(batch, rows, bias, options_, IntraOpWithDenormals(ctx), out));
    }
    const auto changes = FindTableChanges(tables.var(0));
    if (changes != nullptr) changes->NoticeAssignment(tables.var(0));
    Row* data;
    TF_RETURN_IF_ERROR(tables.MutableData(ctx, 0, &data));
    if (changes != nullptr) {
      changes->Expect(tables.var(0));
      changes->rows.Mark(batch.ids, IntraOp(ctx));
    }
    const Span<Row> rows(data, features);
    return ToAbslStatus(Norm::Train(batch, rows, bias, options_, IntraOpWithDenormals(ctx), out));
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

#endif  // TWML_TF_KERNELS_NORMALIZATION_OP_H_
