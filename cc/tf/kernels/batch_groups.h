// The content of the variants that GroupIds and GroupBatch return, and the inputs that take them.
#ifndef TWML_TF_KERNELS_BATCH_GROUPS_H_
#define TWML_TF_KERNELS_BATCH_GROUPS_H_

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "cc/core/group_by_id.h"
#include "cc/tf/kernels/tensor_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace twml {

// The groups do not change once they are in a tensor, so copies share them. They exist in one
// process only: they are neither sent to other ones nor saved.
struct BatchGroups {
  template <class Id>
  using Shared = std::shared_ptr<const GroupedBatch<Id>>;
  std::variant<Shared<int32_t>, Shared<int64_t>> batch;

  std::string TypeName() const { return "twml::BatchGroups"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

// A tensor with these groups.
template <class Id>
tensorflow::Tensor TensorOf(BatchGroups::Shared<Id> groups) {
  tensorflow::Tensor tensor(tensorflow::DT_VARIANT, tensorflow::TensorShape({}));
  tensor.scalar<tensorflow::Variant>()() = BatchGroups{std::move(groups)};
  return tensor;
}

// Sets the output to the groups that group(GroupedBatch<Id>*) makes.
template <class Id, class Group>
absl::Status OutputGroups(tensorflow::OpKernelContext* ctx, Group group) {
  auto grouped = std::make_shared<GroupedBatch<Id>>();
  TF_RETURN_IF_ERROR(ToAbslStatus(group(grouped.get())));
  ctx->set_output(0, TensorOf<Id>(std::move(grouped)));
  return absl::OkStatus();
}

// Reads the input list "groups", which has one item or none. *groups is null if it has none.
template <class Id>
absl::Status ReadGroups(tensorflow::OpKernelContext* ctx, const GroupedBatch<Id>** groups) {
  *groups = nullptr;
  tensorflow::OpInputList list;
  TF_RETURN_IF_ERROR(ctx->input_list("groups", &list));
  if (list.size() == 0) return absl::OkStatus();
  const BatchGroups* found = nullptr;
  if (list.size() == 1 && list[0].dims() == 0) {
    found = list[0].scalar<tensorflow::Variant>()().get<BatchGroups>();
  }
  const auto* batch =
      found == nullptr ? nullptr : std::get_if<BatchGroups::Shared<Id>>(&found->batch);
  if (batch == nullptr) {
    return absl::InvalidArgumentError(
        "groups must be none or one output of GroupIds or GroupBatch with ids of the same type");
  }
  *groups = batch->get();
  return absl::OkStatus();
}

// Reads the scalar input `i`, "input_dim".
inline absl::Status ReadInputDim(tensorflow::OpKernelContext* ctx, int i, int64_t* input_dim) {
  TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(i), 0, "input_dim")));
  *input_dim = ctx->input(i).scalar<int64_t>()();
  return absl::OkStatus();
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_BATCH_GROUPS_H_
