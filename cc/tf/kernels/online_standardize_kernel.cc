#include "cc/core/online_standardize.h"
#include "cc/tf/kernels/normalization_op.h"

namespace twml {
namespace {

static_assert(sizeof(Moments) == 3 * sizeof(double),
              "Moments must have the layout of a row of the moments variable");

struct StandardizeTraits {
  using Options = StandardizeOptions;
  using Row = Moments;
  static constexpr const char* kName = "moments";
  static constexpr TableDType kDType = TableDType::kFloat64;

  static Status CheckState(const tensorflow::Tensor& t) {
    if (t.dims() == 2 && t.dim_size(1) == 3) return Status();
    return Invalid("moments must have the shape [N, 3], got ", t.shape().DebugString());
  }
  static absl::Status ReadAttributes(tensorflow::OpKernelConstruction* ctx, Options* options) {
    float decay;
    TF_RETURN_IF_ERROR(ctx->GetAttr("decay", &decay));
    options->decay = decay;
    return ctx->GetAttr("clip", &options->clip);
  }
  template <class... Arguments>
  static Status Infer(const Arguments&... arguments) {
    return Standardize(arguments...);
  }
  template <class... Arguments>
  static Status Train(const Arguments&... arguments) {
    return StandardizeTraining(arguments...);
  }
};

TWML_REGISTER_NORM("Twml>OnlineStandardize", StandardizeTraits);

}  // namespace
}  // namespace twml
