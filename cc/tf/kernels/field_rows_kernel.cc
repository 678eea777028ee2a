#include "cc/core/field_rows.h"
#include "cc/tf/kernels/tensor_util.h"
#include "tensorflow/core/platform/mutex.h"

namespace twml {
namespace {

template <class Id>
class FieldRowsOp : public Kernel {
 public:
  explicit FieldRowsOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    std::vector<int64_t> num_rows;
    int64_t first_row;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_rows", &num_rows));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("first_row", &first_row));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pooled", &pooled_));
    OP_REQUIRES_OK(ctx, ToAbslStatus(FieldRows::Make(num_rows, first_row, &fields_)));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& ids = ctx->input(0);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ids, 2, "ids")));
    const int64_t batch_size = ids.dim_size(0), width = fields_.num_fields();
    if (ids.dim_size(1) != width) {
      return absl::InvalidArgumentError(absl::StrCat("ids must have a column for each of the ",
                                                     width, " fields, got ", ids.dim_size(1)));
    }
    Tensor* rows;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "rows", {ids.NumElements()}, &rows));
    fields_.Find(SpanOf<Id>(ids), IntraOp(ctx), rows->flat<int64_t>().data());
    return SetRowSplits(ctx, pooled_ ? batch_size : ids.NumElements(), pooled_ ? width : 1);
  }

  // The same batch size has the same row splits, so the tensor is kept for the next call.
  absl::Status SetRowSplits(OpKernelContext* ctx, int64_t rows, int64_t length) {
    tensorflow::mutex_lock lock(mu_);
    if (row_splits_.NumElements() != rows + 1) {
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(tensorflow::DT_INT64, TensorShape({rows + 1}), &row_splits_));
      int64_t* const splits = row_splits_.flat<int64_t>().data();
      for (int64_t b = 0; b <= rows; ++b) splits[b] = b * length;
    }
    ctx->set_output(1, row_splits_);
    return absl::OkStatus();
  }

  FieldRows fields_;
  bool pooled_;
  tensorflow::mutex mu_;
  Tensor row_splits_;
};

#define TWML_REGISTER(Id)                                                                    \
  REGISTER_KERNEL_BUILDER(Name("Twml>FieldRows").Device(DEVICE_CPU).TypeConstraint<Id>("T"), \
                          FieldRowsOp<Id>);
TWML_REGISTER(int32_t)
TWML_REGISTER(int64_t)
#undef TWML_REGISTER

}  // namespace
}  // namespace twml
