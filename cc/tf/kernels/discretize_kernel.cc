#include <memory>
#include <string>

#include "cc/core/discretize.h"
#include "cc/tf/kernels/common.h"
#include "cc/tf/kernels/kept_buffer.h"

namespace twml {
namespace {

// Buckets made of three tensors, which it keeps: as long as it does, their buffers are not written
// to and no other tensor can lie at their addresses.
struct KeptBuckets {
  Tensor feature_ids, boundaries, splits;
  Buckets buckets;

  static bool Same(const Tensor& a, const Tensor& b) {
    return a.data() == b.data() && a.shape() == b.shape();
  }
};

// The buckets of the call before serve again when the op is given the same tensors, as it is while
// nobody assigns the variables they come from: checking and indexing costs O(boundaries).
class BucketsCache {
 public:
  absl::Status Get(OpKernelContext* ctx, std::shared_ptr<const KeptBuckets>* out) {
    const Tensor &feature_ids = ctx->input(3), &boundaries = ctx->input(4), &splits = ctx->input(5);
    tensorflow::mutex_lock lock(mu_);
    if (last_ == nullptr || !KeptBuckets::Same(last_->feature_ids, feature_ids) ||
        !KeptBuckets::Same(last_->boundaries, boundaries) ||
        !KeptBuckets::Same(last_->splits, splits)) {
      TF_RETURN_IF_ERROR(ToTf(CheckRank(feature_ids, 1, "feature_ids")));
      TF_RETURN_IF_ERROR(ToTf(CheckRank(boundaries, 1, "boundaries")));
      TF_RETURN_IF_ERROR(ToTf(CheckRank(splits, 1, "boundary_splits")));
      auto made = std::make_shared<KeptBuckets>();
      TF_RETURN_IF_ERROR(
          ToTf(Buckets::Make(SpanOf<int64_t>(feature_ids), SpanOf<float>(boundaries),
                             SpanOf<int64_t>(splits), IeeeIntraOp(ctx), &made->buckets)));
      made->feature_ids = feature_ids;
      made->boundaries = boundaries;
      made->splits = splits;
      last_ = std::move(made);
    }
    *out = last_;
    return absl::OkStatus();
  }

 private:
  tensorflow::mutex mu_;
  std::shared_ptr<const KeptBuckets> last_;
};

template <class Id>
using Discretizer = Status (*)(const Csr<Id>&, const Buckets&, const DiscretizeOptions&, int64_t,
                               const ParallelFor&, const AllocateEntries&, int64_t*);

template <class Id>
class DiscretizeOp : public OpKernel {
 public:
  DiscretizeOp(OpKernelConstruction* ctx, Discretizer<Id> discretize, const char* bits)
      : OpKernel(ctx), discretize_(discretize) {
    std::string side, missing, unknown;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("side", &side));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("missing", &missing));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("unknown", &unknown));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(bits, &bits_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep_inputs", &options_.keep_inputs));
    options_.side = side == "right" ? Side::kRight : Side::kLeft;
    options_.missing = missing == "drop" ? Missing::kDrop : Missing::kBucket;
    options_.unknown = unknown == "drop"    ? Unknown::kDrop
                       : unknown == "error" ? Unknown::kError
                                            : Unknown::kPass;
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  absl::Status Run(OpKernelContext* ctx) {
    Csr<Id> batch;
    TF_RETURN_IF_ERROR(
        ToTf(CsrOf<Id>(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch)));
    std::shared_ptr<const KeptBuckets> kept;
    TF_RETURN_IF_ERROR(cache_.Get(ctx, &kept));
    Tensor* row_splits;
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, ctx->input(2).shape(), &row_splits));
    absl::Status allocated;
    const auto allocate = [&](int64_t number) -> EntriesOut {
      const TensorShape shape({number});
      Tensor ids, values;
      allocated = ids_.Allocate(ctx, tensorflow::DT_INT64, shape, &ids);
      if (allocated.ok()) {
        allocated = values_.Allocate(ctx, tensorflow::DT_FLOAT, shape, &values);
      }
      if (!allocated.ok()) return {nullptr, nullptr};
      ctx->set_output(0, ids);
      ctx->set_output(1, values);
      return {ids.flat<int64_t>().data(), values.flat<float>().data()};
    };
    TF_RETURN_IF_ERROR(ToTf(discretize_(batch, kept->buckets, options_, bits_, IeeeIntraOp(ctx),
                                        allocate, row_splits->flat<int64_t>().data())));
    return allocated;
  }

  const Discretizer<Id> discretize_;
  DiscretizeOptions options_;
  bool binary_;
  int64_t bits_;
  BucketsCache cache_;
  KeptBuffer ids_, values_;
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
