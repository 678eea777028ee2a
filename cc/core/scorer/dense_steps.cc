// Steps for layers on one dense register, and activations.
#include <algorithm>
#include <utility>

#include "cc/core/scorer/packed_matrix.h"
#include "cc/core/scorer/softmax.h"
#include "cc/core/scorer/step_reader.h"
#include "cc/core/simd_dispatch.h"

namespace twml::scorer {
namespace {

// A dense layer, y = activation(x . kernel + bias), on the last axis of x.
class DenseStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    const ArrayFile kernel = reader.Array("kernel", ItemType::kFloat32, 2);
    ArrayFile bias;
    const bool has_bias = reader.OptionalArray("bias", ItemType::kFloat32, 1, &bias);
    if (!reader.ok()) return nullptr;
    auto step = std::make_unique<DenseStep>();
    step->rows_ = kernel.shape()[0];
    step->columns_ = kernel.shape()[1];
    if (has_bias) {
      if (bias.size() != step->columns_) reader.Fail("must have one bias for each column");
      step->bias_.assign(bias.items<float>().begin(), bias.items<float>().end());
    }
    step->weights_.resize(PackedSize(step->rows_, step->columns_));
    PackMatrix(kernel.items<float>().data(), step->rows_, step->columns_, step->columns_, 1,
               step->weights_.data());
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    std::vector<int64_t> dims = shapes->dims(in[0]);
    if (dims.empty() || dims.back() != rows_) {
      return Invalid("'", shapes->name(in[0]), "' must have ", rows_,
                     " numbers on its last axis, got ", dims.empty() ? 0 : dims.back());
    }
    dims.back() = columns_;
    return shapes->Set(out[0], dims);
  }

  Status Run(const Frame& frame) const override {
    const PackedWeights weights = {weights_.data(), rows_, columns_};
    const float* const bias = bias_.empty() ? nullptr : bias_.data();
    const auto x = frame.In<float>(in[0]);
    const auto y = frame.Out<float>(out[0]);
    const auto dense = GetScoringKernels().dense;
    if (columns_ == 0) return Status();
    if (frame.width(out[0]) == columns_) {
      dense(weights, bias, activation_, x.data, x.stride, frame.rows, y.data, y.stride);
      return Status();
    }
    const int64_t vectors = frame.width(out[0]) / columns_;  // of a row
    for (int64_t r = 0; r < frame.rows; ++r) {
      dense(weights, bias, activation_, x[r], rows_, vectors, y[r], columns_);
    }
    return Status();
  }

  bool Fuse(Activation activation) override {
    if (activation_ != Activation::kLinear) return false;
    activation_ = activation;
    return true;
  }

  int64_t CostOfRow(const Shapes& shapes) const override {
    return 20 + shapes.width(out[0]) * rows_ / 32;
  }

 private:
  int64_t rows_ = 0, columns_ = 0;
  std::vector<float> weights_;  // see PackedWeights
  std::vector<float> bias_;     // empty: none
  Activation activation_ = Activation::kLinear;
};

class ActivationStep : public ElementwiseStep {
 public:
  explicit ActivationStep(Activation activation) : activation_(activation) {}

  Status Run(const Frame& frame) const override {
    const int64_t width = frame.width(in[0]);
    const auto x = frame.In<float>(in[0]);
    const auto y = frame.Out<float>(out[0]);
    const auto activate = GetScoringKernels().activate;
    for (int64_t r = 0; r < frame.rows; ++r) activate(activation_, x[r], width, y[r]);
    return Status();
  }

  Activation activation() const { return activation_; }

 private:
  const Activation activation_;
};

class SoftmaxStep : public LastAxisStep {
  void Apply(const float* x, int64_t n, float* y) const override { Softmax(1, x, n, y); }
};

std::unique_ptr<Step> MakeActivation(StepReader& reader) {
  constexpr std::pair<const char*, Activation> kActivations[] = {
      {"elu", Activation::kElu},           {"exponential", Activation::kExponential},
      {"gelu", Activation::kGelu},         {"relu", Activation::kRelu},
      {"sigmoid", Activation::kSigmoid},   {"silu", Activation::kSilu},
      {"softplus", Activation::kSoftplus}, {"swish", Activation::kSilu},
      {"tanh", Activation::kTanh}};
  reader.RequireInputs(1);
  reader.DenseInput(0, Type::kFloat);
  reader.DenseOutput(0, Type::kFloat);
  const std::string name = reader.String("name");
  if (name == "softmax") return std::make_unique<SoftmaxStep>();
  for (const auto& [known, activation] : kActivations) {
    if (name == known) return std::make_unique<ActivationStep>(activation);
  }
  reader.Fail("has an unknown activation '" + name + "'");
  return nullptr;
}

// y = x * factor + offset on the last axis.
class AffineStep : public ElementwiseStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    const ArrayFile factor = reader.Array("factor", ItemType::kFloat32, 1);
    const ArrayFile offset = reader.Array("offset", ItemType::kFloat32, 1);
    if (!reader.ok()) return nullptr;
    auto step = std::make_unique<AffineStep>();
    step->factor_.assign(factor.items<float>().begin(), factor.items<float>().end());
    step->offset_.assign(offset.items<float>().begin(), offset.items<float>().end());
    if (step->factor_.size() != step->offset_.size()) {
      reader.Fail("must have as many factors as offsets");
    }
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    const auto& dims = shapes->dims(in[0]);
    const auto size = static_cast<int64_t>(factor_.size());
    if (size != 1 && (dims.empty() || dims.back() != size)) {
      return Invalid("'", shapes->name(in[0]), "' must have ", size, " numbers on its last axis");
    }
    return ElementwiseStep::Shape(shapes);
  }

  Status Run(const Frame& frame) const override {
    const int64_t width = frame.width(in[0]);
    const auto size = static_cast<int64_t>(factor_.size());
    const auto x = frame.In<float>(in[0]);
    const auto y = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      const float* const from = x[r];
      float* const to = y[r];
      if (size == 1) {
        for (int64_t i = 0; i < width; ++i) to[i] = from[i] * factor_[0] + offset_[0];
        continue;
      }
      for (int64_t i = 0; i < width; i += size) {
        for (int64_t d = 0; d < size; ++d) to[i + d] = from[i + d] * factor_[d] + offset_[d];
      }
    }
    return Status();
  }

 private:
  std::vector<float> factor_, offset_;
};

}  // namespace

bool ActivationOf(const Step& step, Activation* activation) {
  const auto* const found = dynamic_cast<const ActivationStep*>(&step);
  if (found == nullptr) return false;
  *activation = found->activation();
  return true;
}

MakeStep FindDenseStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {
      {"activation", MakeActivation}, {"affine", AffineStep::Make}, {"dense", DenseStep::Make}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
