#include "cc/core/max_norm.h"
#include "cc/tf/kernels/normalization_op.h"

namespace twml {
namespace {

struct MaxNormTraits {
  using Options = MaxNormOptions;
  using Row = float;
  static constexpr const char* kName = "max_abs";
  static constexpr TableDType kDType = TableDType::kFloat32;

  static Status CheckState(const tensorflow::Tensor& t) { return CheckRank(t, 1, kName); }
  static absl::Status ReadAttributes(tensorflow::OpKernelConstruction* ctx, Options* options) {
    return ctx->GetAttr("decay", &options->decay);
  }
  template <class... Arguments>
  static Status Infer(const Arguments&... arguments) {
    return MaxNorm(arguments...);
  }
  template <class... Arguments>
  static Status Train(const Arguments&... arguments) {
    return MaxNormTraining(arguments...);
  }
};

TWML_REGISTER_NORM("Twml>MaxNorm", MaxNormTraits);

}  // namespace
}  // namespace twml
