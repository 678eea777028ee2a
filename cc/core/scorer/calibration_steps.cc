// Steps that map scores to probabilities (the layers PlattScaling and IsotonicCalibration), and
// probabilities to logits.
#include <algorithm>
#include <cmath>
#include <utility>

#include "cc/core/scorer/step_reader.h"
#include "cc/core/simd_dispatch.h"

namespace twml::scorer {
namespace {

// Each column ("unit") of the scores has a curve of its own. A NaN stays NaN, or gets the base rate
// of its unit.
class CalibrationStep : public ElementwiseStep {
 public:
  Status Shape(Shapes* shapes) const override {
    const auto& dims = shapes->dims(in[0]);
    const int64_t last = dims.empty() ? 1 : dims.back();
    if (last != units()) {
      return Invalid("'", shapes->name(in[0]), "' must have ", units(),
                     " numbers on its last axis");
    }
    return ElementwiseStep::Shape(shapes);
  }

  Status Run(const Frame& frame) const override {
    const int64_t width = frame.width(in[0]);
    const auto x = frame.In<float>(in[0]);
    const auto y = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        const auto unit = static_cast<size_t>(i % units());
        const float score = x[r][i];
        y[r][i] = std::isnan(score) ? (replaced_ ? base_rates_[unit] : score) : At(unit, score);
      }
    }
    return Status();
  }

  int64_t CostOfRow(const Shapes& shapes) const override { return 20 * shapes.width(in[0]); }

 protected:
  virtual float At(size_t unit, float score) const = 0;

  int64_t units() const { return static_cast<int64_t>(base_rates_.size()); }

  // Reads the attributes that all curves share. The first dimension of `arrays` is units.
  void ReadUnits(StepReader& reader, std::initializer_list<const ArrayFile*> arrays) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    replaced_ = reader.Choice("nan", {"propagate", "base_rate"}) == 1;
    base_rates_ = Floats(reader.Array("base_rates", ItemType::kFloat32, 1));
    if (!reader.ok()) return;
    bool fits = units() > 0;
    for (const ArrayFile* array : arrays) fits = fits && array->shape()[0] == units();
    if (!fits) reader.Fail("must have a curve and a base rate for each unit");
  }

  static std::vector<float> Floats(const ArrayFile& array) {
    const auto items = array.items<float>();
    return {items.begin(), items.end()};
  }

 private:
  std::vector<float> base_rates_;
  bool replaced_ = false;
};

// log(p / (1 - p)). Probabilities nearer to 0 or 1 than 1e-7 count as that.
float Logit(float p) {
  constexpr double kEpsilon = 1e-7;
  p = std::clamp(p, static_cast<float>(kEpsilon), static_cast<float>(1 - kEpsilon));
  return std::log(p) - std::log1p(-p);
}

class LogitStep : public ElementwiseStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    return std::make_unique<LogitStep>();
  }

  Status Run(const Frame& frame) const override {
    const int64_t width = frame.width(in[0]);
    const auto x = frame.In<float>(in[0]);
    const auto y = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t i = 0; i < width; ++i) y[r][i] = Logit(x[r][i]);
    }
    return Status();
  }

  int64_t CostOfRow(const Shapes& shapes) const override { return 20 * shapes.width(in[0]); }
};

// sigmoid(slope * logit(score) + intercept)
class PlattStep : public CalibrationStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    auto step = std::make_unique<PlattStep>();
    const ArrayFile slopes = reader.Array("slopes", ItemType::kFloat32, 1);
    const ArrayFile intercepts = reader.Array("intercepts", ItemType::kFloat32, 1);
    step->from_logits_ = reader.Bool("from_logits");
    if (!reader.ok()) return nullptr;
    step->ReadUnits(reader, {&slopes, &intercepts});
    step->slopes_ = Floats(slopes);
    step->intercepts_ = Floats(intercepts);
    return step;
  }

 protected:
  float At(size_t unit, float score) const override {
    if (!from_logits_) score = Logit(score);
    // 0 times infinity would be NaN, but a slope of 0 gives a constant.
    float y = (slopes_[unit] == 0 ? 0 : score * slopes_[unit]) + intercepts_[unit];
    GetScoringKernels().activate(Activation::kSigmoid, &y, 1, &y);
    return y;
  }

 private:
  std::vector<float> slopes_, intercepts_;
  bool from_logits_ = false;
};

// Linear between the corners of a curve, and constant outside.
class IsotonicStep : public CalibrationStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    auto step = std::make_unique<IsotonicStep>();
    const ArrayFile scores = reader.Array("corner_scores", ItemType::kFloat32, 2);
    const ArrayFile values = reader.Array("corner_values", ItemType::kFloat32, 2);
    if (!reader.ok()) return nullptr;
    step->ReadUnits(reader, {&scores, &values});
    step->corners_ = scores.shape()[1];
    step->scores_ = Floats(scores);
    step->values_ = Floats(values);
    bool valid = step->corners_ > 0 && scores.shape() == values.shape();
    for (size_t i = 0; valid && i < step->scores_.size(); ++i) {
      const bool first = static_cast<int64_t>(i) % step->corners_ == 0;
      valid = first ? !std::isnan(step->scores_[i]) : step->scores_[i - 1] <= step->scores_[i];
    }
    if (!valid) reader.Fail("must have curves with ascending scores, and a value for each");
    return step;
  }

 protected:
  float At(size_t unit, float score) const override {
    const float* const xs = scores_.data() + static_cast<int64_t>(unit) * corners_;
    const float* const ys = values_.data() + static_cast<int64_t>(unit) * corners_;
    score = std::clamp(score, xs[0], xs[corners_ - 1]);
    const int64_t above = std::upper_bound(xs, xs + corners_, score) - xs;
    const int64_t low = std::max<int64_t>(above - 1, 0), high = std::min(above, corners_ - 1);
    const float run = xs[high] - xs[low];
    const float rise = run == 0 ? 0 : (score - xs[low]) / run * (ys[high] - ys[low]);
    return std::min(ys[low] + rise, ys[high]);  // rounding must not exceed the next corner
  }

 private:
  std::vector<float> scores_, values_;  // [units, corners]
  int64_t corners_ = 0;
};

}  // namespace

MakeStep FindCalibrationStep(const std::string& op) {
  if (op == "isotonic_calibration") return IsotonicStep::Make;
  if (op == "logit") return LogitStep::Make;
  if (op == "platt_scaling") return PlattStep::Make;
  return nullptr;
}

}  // namespace twml::scorer
