#include <memory>
#include <string>

#include "cc/core/discretize.h"
#include "cc/tf/kernels/reusable_buffer.h"
#include "cc/tf/kernels/tensor_snapshot.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

// Caches the Buckets object while the three tensors that it is built from keep their content,
// because building it costs much more than discretizing a batch.
class BucketsCache {
 public:
  absl::Status Get(OpKernelContext* ctx, std::shared_ptr<const Buckets>* out) {
    const Tensor &feature_ids = ctx->input(3), &boundaries = ctx->input(4), &splits = ctx->input(5);
    tensorflow::mutex_lock lock(mu_);
    if (last_ == nullptr || !feature_ids_.Matches(feature_ids) ||
        !boundaries_.Matches(boundaries) || !splits_.Matches(splits)) {
      last_ = nullptr;
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(feature_ids, 1, "feature_ids")));
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(boundaries, 1, "boundaries")));
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(splits, 1, "boundary_splits")));
      TF_RETURN_IF_ERROR(feature_ids_.Capture(ctx, "feature_ids", feature_ids));
      TF_RETURN_IF_ERROR(boundaries_.Capture(ctx, "boundaries", boundaries));
      TF_RETURN_IF_ERROR(splits_.Capture(ctx, "boundary_splits", splits));
      auto made = std::make_shared<Buckets>();
      TF_RETURN_IF_ERROR(ToAbslStatus(
          Buckets::Make(SpanOf<int64_t>(feature_ids_.tensor()), SpanOf<float>(boundaries_.tensor()),
                        SpanOf<int64_t>(splits_.tensor()), IntraOpWithDenormals(ctx), made.get())));
      last_ = std::move(made);
    }
    *out = last_;
    return absl::OkStatus();
  }

 private:
  tensorflow::mutex mu_;
  std::shared_ptr<const Buckets> last_;
  TensorSnapshot feature_ids_, boundaries_, splits_;
};

template <class Id>
using Discretizer = Status (*)(const Csr<Id>&, const Buckets&, const DiscretizeOptions&, int64_t,
                               const ParallelFor&, const AllocateEntries&, int64_t*);

template <class Id>
class DiscretizeOp : public Kernel {
 public:
  DiscretizeOp(OpKernelConstruction* ctx, Discretizer<Id> discretize, const char* bits)
      : Kernel(ctx), discretize_(discretize) {
    std::string side, missing, unknown;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("side", &side));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("missing", &missing));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("unknown", &unknown));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(bits, &bits_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep_inputs", &options_.keep_inputs));
    options_.side = side == "right" ? Side::kRight : Side::kLeft;
    options_.missing = missing == "drop" ? MissingPolicy::kDrop : MissingPolicy::kBucket;
    options_.unknown = unknown == "drop"    ? UnknownPolicy::kDrop
                       : unknown == "error" ? UnknownPolicy::kError
                                            : UnknownPolicy::kPass;
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Csr<Id> batch;
    TF_RETURN_IF_ERROR(
        ToAbslStatus(CsrOf<Id>(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch)));
    std::shared_ptr<const Buckets> buckets;
    TF_RETURN_IF_ERROR(cache_.Get(ctx, &buckets));
    Tensor* row_splits;
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, 2, "row_splits", {batch.row_splits.size()}, &row_splits));
    absl::Status allocated;
    const auto allocate = [&](int64_t number) -> EntriesOutput {
      Tensor ids, values;
      allocated = ids_.Allocate(ctx, "ids", tensorflow::DT_INT64, {number}, &ids);
      if (allocated.ok()) {
        allocated = values_.Allocate(ctx, "values", tensorflow::DT_FLOAT, {number}, &values);
      }
      if (!allocated.ok()) return {nullptr, nullptr};
      ctx->set_output(0, ids);
      ctx->set_output(1, values);
      return {ids.flat<int64_t>().data(), values.flat<float>().data()};
    };
    TF_RETURN_IF_ERROR(
        ToAbslStatus(discretize_(batch, *buckets, options_, bits_, IntraOpWithDenormals(ctx),
                                 allocate, row_splits->flat<int64_t>().data())));
    return allocated;
  }

  const Discretizer<Id> discretize_;
  DiscretizeOptions options_;
  bool binary_;
  int64_t bits_;
  BucketsCache cache_;
  ReusableBuffer ids_, values_;
};

template <class Id>
struct PercentileDiscretizeOp : DiscretizeOp<Id> {
  explicit PercentileDiscretizeOp(OpKernelConstruction* ctx)
      : DiscretizeOp<Id>(ctx, &PercentileDiscretize<Id>, "pass_through_bits") {}
};

template <class Id>
struct HashingDiscretizeOp : DiscretizeOp<Id> {
  explicit HashingDiscretizeOp(OpKernelConstruction* ctx)
      : DiscretizeOp<Id>(ctx, &HashingDiscretize<Id>, "output_bits") {}
};

#define TWML_REGISTER(Id)                                                           \
  REGISTER_KERNEL_BUILDER(                                                          \
      Name("Twml>PercentileDiscretize").Device(DEVICE_CPU).TypeConstraint<Id>("T"), \
      PercentileDiscretizeOp<Id>);                                                  \
  REGISTER_KERNEL_BUILDER(                                                          \
      Name("Twml>HashingDiscretize").Device(DEVICE_CPU).TypeConstraint<Id>("T"),    \
      HashingDiscretizeOp<Id>);
TWML_REGISTER(int32_t)
TWML_REGISTER(int64_t)
#undef TWML_REGISTER

}  // namespace
}  // namespace twml
