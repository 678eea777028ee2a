// The kernels for CUDA GPUs of the ops that discretize and normalize features.
#include <string>
#include <vector>

#include "cc/core/discretize.h"
#include "cc/core/hash.h"
#include "cc/core/normalization.h"
#include "cc/tf/kernels/cuda_arguments.h"
#include "cc/tf/kernels/cuda_kernel.h"

namespace twml {
namespace {

// The boundaries are tensors on the device. Only their splits are checked.
template <bool hashing>
class CudaDiscretizeOp : public CudaKernel {
 public:
  explicit CudaDiscretizeOp(OpKernelConstruction* ctx) : CudaKernel(ctx) {
    std::string side, missing, unknown;
    const char* const bits_name = hashing ? "output_bits" : "pass_through_bits";
    int64_t bits;
    bool keep_inputs;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("side", &side));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("missing", &missing));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("unknown", &unknown));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep_inputs", &keep_inputs));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(bits_name, &bits));
    OP_REQUIRES_OK(ctx, ToAbslStatus(CheckHashBits(bits, bits_name)));
    buckets_.side = side == "right";
    buckets_.missing =
        static_cast<int>(missing == "drop" ? MissingPolicy::kDrop : MissingPolicy::kBucket);
    buckets_.unknown = static_cast<int>(unknown == "drop"    ? UnknownPolicy::kDrop
                                        : unknown == "error" ? UnknownPolicy::kError
                                                             : UnknownPolicy::kPass);
    buckets_.keep_inputs = keep_inputs;
    buckets_.hashing = hashing;
    buckets_.bits = static_cast<int>(bits);
    keeps_number_ = missing != "drop" && unknown != "drop" && !keep_inputs;
  }

 private:
  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    TwmlCudaBatch batch;
    TF_RETURN_IF_ERROR(BatchOf(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch));
    TwmlCudaBuckets buckets = buckets_;
    TF_RETURN_IF_ERROR(ReadBuckets(ctx, &buckets));
    scope->table = absl::StrCat("the boundaries of ", buckets.num_features, " features");
    const int64_t n = batch.num_entries;
    Tensor ends, *row_splits, *ids, *values;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_INT64, TensorShape({n}), &ends));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 2, "row_splits", {batch.num_rows + 1}, &row_splits));
    TF_RETURN_IF_ERROR(
        ToStatus(cuda.discretize_sizes(&scope->call, &batch, &buckets, ends.flat<int64_t>().data(),
                                       row_splits->flat<int64_t>().data()),
                 *scope));
    // If entries are dropped or kept beside their buckets, the number of outputs is known on the
    // device only.
    int64_t number = n;
    if (!keeps_number_ && n > 0) {
      TF_RETURN_IF_ERROR(ReadItem(ends.flat<int64_t>().data() + n - 1, *scope, &number));
    }
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "ids", {number}, &ids));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, "values", {number}, &values));
    return ToStatus(cuda.discretize(&scope->call, &batch, &buckets, ends.flat<int64_t>().data(),
                                    ids->flat<int64_t>().data(), values->flat<float>().data()),
                    *scope);
  }

  static absl::Status ReadBuckets(OpKernelContext* ctx, TwmlCudaBuckets* buckets) {
    const Tensor &feature_ids = ctx->input(3), &boundaries = ctx->input(4), &splits = ctx->input(5);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(feature_ids, 1, "feature_ids")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(boundaries, 1, "boundaries")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(splits, 1, "boundary_splits")));
    buckets->num_features = feature_ids.NumElements();
    buckets->num_boundaries = boundaries.NumElements();
    if (splits.NumElements() != buckets->num_features + 1) {
      return absl::InvalidArgumentError(absl::StrCat("boundary_splits must have ",
                                                     buckets->num_features + 1, " items, got ",
                                                     splits.NumElements()));
    }
    buckets->feature_ids = feature_ids.flat<int64_t>().data();
    buckets->boundaries = boundaries.flat<float>().data();
    buckets->splits = splits.flat<int64_t>().data();
    return absl::OkStatus();
  }

  TwmlCudaBuckets buckets_ = {};
  bool binary_, keeps_number_;
};

class CudaMaxNormOp : public CudaKernel {
 public:
  explicit CudaMaxNormOp(OpKernelConstruction* ctx) : CudaKernel(ctx) {
    std::string nonfinite;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_bias", &num_bias_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &norm_.epsilon));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("decay", &norm_.decay));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("nonfinite", &nonfinite));
    OP_REQUIRES(ctx, num_bias_ <= 1,
                absl::InvalidArgumentError(
                    absl::StrCat("bias must be one variable or none, got ", num_bias_)));
    norm_.nonfinite =
        static_cast<int>(nonfinite == "zero" ? NonFinitePolicy::kZero : NonFinitePolicy::kError);
  }

 private:
  static constexpr int kState = 2, kBias = 3;

  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    const Tensor &ids = ctx->input(0), &values = ctx->input(1);
    const Tensor& training = ctx->input(kBias + num_bias_);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(training, 0, "training")));
    TwmlCudaMaxNorm norm = norm_;
    norm.training = training.scalar<bool>()();
    if (ctx->num_inputs() != kBias + num_bias_ + 1) return GroupsOfIdsError();
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ids, 1, "ids")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(values, 1, "values")));
    const int64_t n = ids.NumElements();
    if (values.NumElements() != n) {
      return absl::InvalidArgumentError(
          absl::StrCat("values must have ", n, " items, got ", values.NumElements()));
    }
    LockedTables tables;  // the state, and the bias if there is one
    TF_RETURN_IF_ERROR(tables.Add(ctx, kState, 1, norm.training ? Access::kUpdate : Access::kRead));
    TF_RETURN_IF_ERROR(tables.Add(ctx, kBias, num_bias_, Access::kRead));
    if (!tables.distinct()) {
      return absl::InvalidArgumentError("max_abs and bias must be different variables");
    }
    tables.Lock();
    TF_RETURN_IF_ERROR(CheckTable(tables.tensor(0), "max_abs"));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(tables.tensor(0), 1, "max_abs")));
    norm.input_dim = tables.tensor(0).NumElements();
    scope->table = Describe(HandleFromInput(ctx, kState), tables.tensor(0));
    if (num_bias_ == 1) {
      TF_RETURN_IF_ERROR(CheckTable(tables.tensor(1), "bias"));
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(tables.tensor(1), 1, "bias")));
      if (tables.tensor(1).NumElements() != norm.input_dim) {
        return absl::InvalidArgumentError(absl::StrCat("bias must have ", norm.input_dim,
                                                       " items like max_abs, got ",
                                                       tables.tensor(1).NumElements()));
      }
      norm.bias = tables.tensor(1).flat<float>().data();
    }
    Tensor *out, *scale;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "output", {n}, &out));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, "scale", {n}, &scale));
    if (norm.training) TF_RETURN_IF_ERROR(MakeWritable(tables.var(0), *scope));
    norm.max_abs = static_cast<float*>(tables.tensor(0).data());
    const TwmlCudaBatch batch = {
        ids.data(), ids.dtype() == tensorflow::DT_INT64, values.flat<float>().data(), nullptr, n,
        n};
    return ToStatus(cuda.max_norm(&scope->call, &batch, &norm, out->flat<float>().data(),
                                  scale->flat<float>().data()),
                    *scope);
  }

  TwmlCudaMaxNorm norm_ = {};
  int num_bias_;
};

}  // namespace

void RegisterFeatureKernels() {
  RegisterCuda<CudaDiscretizeOp<false>>("Twml>PercentileDiscretize", {});
  RegisterCuda<CudaDiscretizeOp<true>>("Twml>HashingDiscretize", {});
  RegisterCuda<CudaMaxNormOp>("Twml>MaxNorm", {"max_abs", "bias", "training", "groups"});
}

}  // namespace twml
