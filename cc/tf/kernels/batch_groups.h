// The content of the variant that GroupBatch returns.
#ifndef TWML_TF_KERNELS_BATCH_GROUPS_H_
#define TWML_TF_KERNELS_BATCH_GROUPS_H_

#include <memory>
#include <string>
#include <variant>

#include "cc/core/sparse_linear.h"
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

}  // namespace twml

#endif  // TWML_TF_KERNELS_BATCH_GROUPS_H_
