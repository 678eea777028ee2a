#include <vector>

#include "cc/core/parallel_tasks.h"
#include "cc/core/sparse_linear.h"
#include "cc/tf/kernels/grouped_tables.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {
namespace {

template <class Id>
class GroupedSparseLinearOp : public Kernel {
 public:
  explicit GroupedSparseLinearOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, GetGroupedAttributes(ctx, &num_tables_, &binary_));
    huge_pages_ = std::vector<HugePages>(num_tables_);
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    LockedTables tables;
    TF_RETURN_IF_ERROR(
        LockForReading(ctx, 3 * num_tables_, num_tables_, TableDType::kFloat32OrBfloat16, &tables));
    std::vector<ParallelTask> tasks;
    for (int i = 0; i < num_tables_; ++i) {
      TF_RETURN_IF_ERROR(AddTask(ctx, i, tables.tensor(i), &tasks));
    }
    return ToAbslStatus(RunParallelTasks(tasks, IntraOp(ctx)));
  }

  const Tensor& Input(OpKernelContext* ctx, int list, int i) const {
    return ctx->input(list * num_tables_ + i);
  }

  absl::Status AddTask(OpKernelContext* ctx, int i, const Tensor& weights,
                       std::vector<ParallelTask>* tasks) {
    Csr<Id> batch;
    TF_RETURN_IF_ERROR(TableStatus(
        i, CsrOf<Id>(Input(ctx, 0, i), Input(ctx, 1, i), Input(ctx, 2, i), binary_[i], &batch)));
    TF_RETURN_IF_ERROR(TableStatus(i, CheckRank(weights, 2, "weights")));
    huge_pages_[i].Advise(weights.data(), weights.TotalBytes());
    Tensor* out;
    const int64_t dim = weights.dim_size(1);
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, i, "output", {batch.num_rows(), dim}, &out));
    return VisitWeightType(weights, [&](auto weight) {
      const auto matrix = MatrixOf<decltype(weight)>(weights);
      float* sums = out->flat<float>().data();
      // Without rows there is no work, and dim may be so large that the cost overflows.
      const int64_t cost =
          batch.num_rows() == 0 ? 0 : (2 + dim / 16) * batch.ids.size() + 2 * batch.num_rows();
      tasks->push_back({cost, [=](const ParallelFor& parallel_for) {
                          return WithTableIndex(i, SparseLinear(batch, matrix, parallel_for, sums));
                        }});
      return absl::OkStatus();
    });
  }

  static Status WithTableIndex(int i, const Status& s) {
    return s.ok() ? s : Invalid("table ", i, ": ", s.message());
  }
  static absl::Status TableStatus(int i, const Status& s) {
    return ToAbslStatus(WithTableIndex(i, s));
  }

  int num_tables_;
  std::vector<bool> binary_;
  std::vector<HugePages> huge_pages_;
};

REGISTER_KERNEL_BUILDER(
    Name("Twml>GroupedSparseLinear").Device(DEVICE_CPU).TypeConstraint<int32_t>("T"),
    GroupedSparseLinearOp<int32_t>);
REGISTER_KERNEL_BUILDER(
    Name("Twml>GroupedSparseLinear").Device(DEVICE_CPU).TypeConstraint<int64_t>("T"),
    GroupedSparseLinearOp<int64_t>);

}  // namespace
}  // namespace twml
