// Steps on dense registers: layers, activations, and joining of arrays.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cc/core/scorer/step_reader.h"
#include "cc/core/simd_dispatch.h"
#include "cc/core/tree_sums.h"

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
    step->Pack(kernel.items<float>().data());
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
  void Pack(const float* kernel) {
    if (columns_ <= kMaxNarrow) {
      weights_.resize(rows_ * columns_);
      for (int64_t i = 0; i < rows_; ++i) {
        for (int64_t j = 0; j < columns_; ++j) {
          weights_[j * rows_ + i] = kernel[i * columns_ + j];
        }
      }
      return;
    }
    const int64_t panels = (columns_ + kPanel - 1) / kPanel;
    weights_.resize(panels * rows_ * kPanel);
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t width = std::min(kPanel, columns_ - p * kPanel);
      for (int64_t i = 0; i < rows_; ++i) {
        std::copy_n(kernel + i * columns_ + p * kPanel, width,
                    weights_.data() + (p * rows_ + i) * kPanel);
      }
    }
  }

  int64_t rows_ = 0, columns_ = 0;
  std::vector<float> weights_;  // see PackedWeights
  std::vector<float> bias_;     // empty: none
  Activation activation_ = Activation::kLinear;
};

// One float for each float of an input.
class ElementwiseStep : public Step {
 public:
  Status Shape(Shapes* shapes) const override { return shapes->Set(out[0], shapes->dims(in[0])); }
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

class SoftmaxStep : public ElementwiseStep {
 public:
  Status Shape(Shapes* shapes) const override {
    if (shapes->dims(in[0]).empty()) {
      return Invalid("'", shapes->name(in[0]), "' must have at least 2 dimensions");
    }
    return ElementwiseStep::Shape(shapes);
  }

  Status Run(const Frame& frame) const override {
    const int64_t width = frame.width(in[0]);
    const int64_t last = frame.shapes[in[0]].dims.back();
    const auto activate = GetScoringKernels().activate;
    const auto x = frame.In<float>(in[0]);
    const auto out_rows = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t i = 0; i < width; i += last) {
        const float* const numbers = x[r] + i;
        float* const y = out_rows[r] + i;
        const float largest = *std::max_element(numbers, numbers + last);
        for (int64_t d = 0; d < last; ++d) y[d] = numbers[d] - largest;
        activate(Activation::kExponential, y, last, y);
        float sum = 0;
        for (int64_t d = 0; d < last; ++d) sum += y[d];
        for (int64_t d = 0; d < last; ++d) y[d] /= sum;
      }
    }
    return Status();
  }
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

// x0 * (product + diag_scale * x) + x, the last part of a cross layer.
class CrossStep : public ElementwiseStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(3);
    for (size_t i = 0; i < 3; ++i) reader.DenseInput(i, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    auto step = std::make_unique<CrossStep>();
    step->diag_scale_ = static_cast<float>(reader.Number("diag_scale"));
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    for (const size_t i : {1, 2}) {
      if (shapes->dims(in[i]) != shapes->dims(in[0])) {
        return Invalid("'", shapes->name(in[i]), "' must have the shape of '", shapes->name(in[0]),
                       "'");
      }
    }
    return ElementwiseStep::Shape(shapes);
  }

  Status Run(const Frame& frame) const override {
    const int64_t width = frame.width(in[0]);
    const auto x0 = frame.In<float>(in[0]), x = frame.In<float>(in[1]);
    const auto product = frame.In<float>(in[2]);
    const auto y = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      const float *const a = x0[r], *const b = x[r], *const p = product[r];
      float* const to = y[r];
      for (int64_t i = 0; i < width; ++i) to[i] = a[i] * (p[i] + diag_scale_ * b[i]) + b[i];
    }
    return Status();
  }

 private:
  float diag_scale_ = 0;
};

enum class MergeKind { kAdd, kMultiply, kAverage };

// Sums, products and means of arrays. A dimension of size 1 is repeated where others are larger.
template <MergeKind kind>
class MergeStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    if (reader.num_inputs() == 0) reader.RequireInputs(1);
    for (size_t i = 0; i < reader.num_inputs(); ++i) reader.DenseInput(i, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    return std::make_unique<MergeStep>();
  }

  Status Shape(Shapes* shapes) const override {
    std::vector<int64_t> dims = shapes->dims(in[0]);
    for (const Register r : in) {
      const auto& other = shapes->dims(r);
      bool fits = other.size() == dims.size();
      for (size_t d = 0; fits && d < dims.size(); ++d) {
        fits = other[d] == dims[d] || other[d] == 1 || dims[d] == 1;
        if (dims[d] == 1) dims[d] = other[d];
      }
      if (!fits) {
        return Invalid("'", shapes->name(r), "' and '", shapes->name(in[0]),
                       "' must have shapes that fit together");
      }
    }
    return shapes->Set(out[0], dims);
  }

  Status Run(const Frame& frame) const override {
    const int64_t width = frame.width(out[0]);
    const auto y = frame.Out<float>(out[0]);
    const float count = static_cast<float>(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      const auto x = frame.In<float>(in[i]);
      const bool whole = frame.shapes[in[i]].dims == frame.shapes[out[0]].dims;
      for (int64_t r = 0; r < frame.rows; ++r) {
        float* const to = y[r];
        const float* const from = x[r];
        if (whole) {
          Merge(i == 0, width, to, [from](int64_t k) { return from[k]; });
        } else {
          Merge(i == 0, width, to, [&](int64_t k) { return from[Position(frame, in[i], k)]; });
        }
      }
    }
    if (kind == MergeKind::kAverage) {
      for (int64_t r = 0; r < frame.rows; ++r) {
        for (int64_t k = 0; k < width; ++k) y[r][k] /= count;
      }
    }
    return Status();
  }

 private:
  template <class Item>
  static void Merge(bool first, int64_t width, float* to, const Item& item) {
    if (first) {
      for (int64_t k = 0; k < width; ++k) to[k] = item(k);
    } else if (kind == MergeKind::kMultiply) {
      for (int64_t k = 0; k < width; ++k) to[k] *= item(k);
    } else {
      for (int64_t k = 0; k < width; ++k) to[k] += item(k);
    }
  }

  // The item of an input that belongs to item k of the output.
  int64_t Position(const Frame& frame, Register input, int64_t k) const {
    const auto& dims = frame.shapes[out[0]].dims;
    const auto& own = frame.shapes[input].dims;
    int64_t position = 0, step = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      if (own[d] != 1) position += k % dims[d] * step;
      k /= dims[d];
      step *= own[d];
    }
    return position;
  }
};

// (x + y) / 2
class MeanStep : public MergeStep<MergeKind::kAverage> {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(2);
    return MergeStep<MergeKind::kAverage>::Make(reader);
  }
};

class ConcatenateStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    if (reader.num_inputs() == 0) reader.RequireInputs(1);
    for (size_t i = 0; i < reader.num_inputs(); ++i) reader.DenseInputOfAnyType(i);
    reader.DenseOutputOfInputType(0);
    auto step = std::make_unique<ConcatenateStep>();
    step->axis_ = reader.Integer("axis");
    if (step->axis_ == 0) reader.Fail("must not join rows: the axis is 0");
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    std::vector<int64_t> dims = shapes->dims(in[0]);
    const auto rank = static_cast<int64_t>(dims.size());
    const int64_t axis = Axis(rank);
    if (axis < 0 || axis >= rank) {
      return Invalid("axis must be that of an array of ", rank + 1, " dimensions, got ", axis_);
    }
    dims[axis] = 0;
    for (const Register r : in) {
      std::vector<int64_t> other = shapes->dims(r);
      const bool same_rank = other.size() == dims.size();
      const int64_t size = same_rank ? std::exchange(other[axis], dims[axis]) : 0;
      if (!same_rank || other != dims) {
        return Invalid("'", shapes->name(r), "' and '", shapes->name(in[0]),
                       "' must have the same shape but for one axis");
      }
      dims[axis] += size;
    }
    return shapes->Set(out[0], dims);
  }

  Status Run(const Frame& frame) const override {
    const auto& dims = frame.shapes[out[0]].dims;
    const int64_t item = SizeOf(frame.registers[out[0]].type);
    int64_t outer = 1;
    for (int64_t d = 0; d < Axis(static_cast<int64_t>(dims.size())); ++d) outer *= dims[d];
    if (outer == 0 || frame.width(out[0]) == 0) return Status();
    const auto y = frame.Out<char>(out[0]);
    const int64_t whole = frame.width(out[0]) / outer * item;
    int64_t at = 0;
    for (const Register r : in) {
      const int64_t part = frame.width(r) / outer * item;
      const auto x = frame.In<char>(r);
      for (int64_t b = 0; b < frame.rows; ++b) {
        char* to = y.data + b * y.stride * item + at;
        const char* from = x.data + b * x.stride * item;
        for (int64_t o = 0; o < outer; ++o, to += whole, from += part) {
          std::memcpy(to, from, static_cast<size_t>(part));
        }
      }
      at += part;
    }
    return Status();
  }

 private:
  // The axis of a row.
  int64_t Axis(int64_t rank) const { return axis_ < 0 ? axis_ + rank : axis_ - 1; }

  int64_t axis_ = 0;
};

class ReshapeStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInputOfAnyType(0);
    reader.DenseOutputOfInputType(0);
    auto step = std::make_unique<ReshapeStep>();
    step->dims_ = reader.Integers("shape");
    if (std::count(step->dims_.begin(), step->dims_.end(), -1) > 1) {
      reader.Fail("must have at most one size -1");
    }
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    const int64_t width = shapes->width(in[0]);
    int64_t known = 1;
    bool valid = true;
    for (const int64_t dim : dims_) {
      valid = valid && dim >= -1 && (dim < 0 || !__builtin_mul_overflow(known, dim, &known));
    }
    std::vector<int64_t> dims = dims_;
    for (int64_t& dim : dims) {
      if (dim == -1) dim = known > 0 ? width / known : 0;
    }
    if (valid) TWML_RETURN_IF_ERROR(shapes->Set(out[0], dims));
    if (valid && shapes->width(out[0]) == width) return Status();
    return Invalid("a row of '", shapes->name(in[0]), "' has ", width,
                   " numbers, which do not fit into the shape");
  }

  Status Run(const Frame& frame) const override {
    const int64_t item = SizeOf(frame.registers[out[0]].type);
    const int64_t bytes = frame.width(in[0]) * item;
    const auto x = frame.In<char>(in[0]);
    const auto y = frame.Out<char>(out[0]);
    for (int64_t r = 0; r < frame.rows && bytes > 0; ++r) {
      std::memcpy(y.data + r * y.stride * item, x.data + r * x.stride * item,
                  static_cast<size_t>(bytes));
    }
    return Status();
  }

 private:
  std::vector<int64_t> dims_;
};

// Products of all pairs of vectors, 0.5 * ((sum of v)^2 - sum of v^2), of several inputs [B, D] or
// of one [B, F, D]; with `pool` their sum.
class FactorizationMachineStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    if (reader.num_inputs() == 0) reader.RequireInputs(1);
    for (size_t i = 0; i < reader.num_inputs(); ++i) reader.DenseInput(i, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    auto step = std::make_unique<FactorizationMachineStep>();
    step->pool_ = reader.Bool("pool");
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    const auto& dims = shapes->dims(in[0]);
    if (!(in.size() == 1 && dims.size() == 2)) {
      const int64_t size = dims.empty() ? -1 : dims[0];
      for (const Register r : in) TWML_RETURN_IF_ERROR(shapes->RequireVector(r, size));
    }
    return shapes->Set(out[0], {pool_ ? 1 : dims.back()});
  }

  Status Run(const Frame& frame) const override {
    const int64_t dim = frame.shapes[in[0]].dims.back();
    const int64_t vectors = dim == 0 ? 0 : frame.width(in[0]) / dim;  // of each input
    float* const sums = frame.memory->New<float>(2 * dim);
    const auto y = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      float *const total = sums, *const squares = sums + dim;
      std::fill_n(sums, 2 * dim, 0.0f);
      for (const Register input : in) {
        const float* v = frame.In<float>(input)[r];
        for (int64_t f = 0; f < vectors; ++f, v += dim) {
          for (int64_t d = 0; d < dim; ++d) {
            total[d] += v[d];
            squares[d] += v[d] * v[d];
          }
        }
      }
      float pooled = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const float product = 0.5f * (total[d] * total[d] - squares[d]);
        pooled += product;
        if (!pool_) y[r][d] = product;
      }
      if (pool_) y[r][0] = pooled;
    }
    return Status();
  }

 private:
  bool pool_ = false;
};

// Dot products of all pairs i < j of vectors, [B, F, D] -> [B, F (F - 1) / 2].
class DotInteractionStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    return std::make_unique<DotInteractionStep>();
  }

  Status Shape(Shapes* shapes) const override {
    const auto& dims = shapes->dims(in[0]);
    if (dims.size() != 2) {
      return Invalid("'", shapes->name(in[0]), "' must have the shape [B, any, any]");
    }
    return shapes->Set(out[0], {dims[0] * (dims[0] - 1) / 2});
  }

  Status Run(const Frame& frame) const override {
    const auto& dims = frame.shapes[in[0]].dims;
    float* const scratch = frame.memory->New<float>(dims[1] * (dims[0] + kPanel));
    const auto x = frame.In<float>(in[0]);
    const auto y = frame.Out<float>(out[0]);
    const auto products = GetScoringKernels().pair_products;
    for (int64_t r = 0; r < frame.rows; ++r) products(x[r], dims[0], dims[1], scratch, y[r]);
    return Status();
  }

  int64_t CostOfRow(const Shapes& shapes) const override {
    const auto& dims = shapes.dims(in[0]);
    return 20 + dims[0] * dims[0] * dims[1] / 32;
  }
};

// [B, E] . [B, E, D] -> [B, D]
class DotStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(2);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseInput(1, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    return std::make_unique<DotStep>();
  }

  Status Shape(Shapes* shapes) const override {
    const auto& dims = shapes->dims(in[1]);
    if (dims.size() != 2) {
      return Invalid("'", shapes->name(in[1]), "' must have the shape [B, any, any]");
    }
    TWML_RETURN_IF_ERROR(shapes->RequireVector(in[0], dims[0]));
    return shapes->Set(out[0], {dims[1]});
  }

  Status Run(const Frame& frame) const override {
    const auto& dims = frame.shapes[in[1]].dims;
    const auto weights = frame.In<float>(in[0]), vectors = frame.In<float>(in[1]);
    const auto y = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      float* const to = y[r];
      std::fill_n(to, dims[1], 0.0f);
      for (int64_t e = 0; e < dims[0]; ++e) {
        const float weight = weights[r][e];
        const float* const vector = vectors[r] + e * dims[1];
        for (int64_t d = 0; d < dims[1]; ++d) to[d] += weight * vector[d];
      }
    }
    return Status();
  }
};

// The mean of the sums of the leaves of ensembles of trees.
class BoostedTreesStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    const size_t inputs = reader.num_inputs();
    if (inputs != 2) reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    if (inputs == 2) reader.DenseInput(1, Type::kBool);
    reader.DenseOutput(0, Type::kFloat);
    auto step = std::make_unique<BoostedTreesStep>();
    step->num_optional_ = reader.Integer("num_optional");
    step->max_depth_ = reader.Integer("max_depth");
    step->features_ = reader.Array("features", ItemType::kInt32, 1);
    step->thresholds_ = reader.Array("thresholds", ItemType::kFloat32, 1);
    step->missing_left_ = reader.Array("missing_left", ItemType::kUint8, 1);
    step->children_ = reader.Array("children", ItemType::kInt32, 2);
    step->values_ = reader.Array("values", ItemType::kFloat32, 1);
    step->roots_ = reader.Array("roots", ItemType::kInt32, 2);
    if (!reader.ok()) return nullptr;
    if (step->max_depth_ < 0 || step->max_depth_ > 1024) {
      reader.Fail("must have a max_depth in [0, 1024]");
    }
    const Status valid =
        CheckTrees(step->Nodes(), step->Roots(), std::numeric_limits<int32_t>::max());
    if (!valid.ok()) reader.Fail(": " + valid.message());
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    TWML_RETURN_IF_ERROR(shapes->RequireVector(in[0], -1));
    const int64_t columns = shapes->width(in[0]);
    if (num_optional_ < 0 || num_optional_ > columns) {
      return Invalid("num_optional must be in [0, ", columns, "], got ", num_optional_);
    }
    if (in.size() == 2) TWML_RETURN_IF_ERROR(shapes->RequireVector(in[1], num_optional_));
    TWML_RETURN_IF_ERROR(CheckTrees(Nodes(), Roots(), columns));
    return shapes->Set(out[0], {1});
  }

  Status Run(const Frame& frame) const override {
    const int64_t columns = frame.width(in[0]);
    const auto x = frame.In<float>(in[0]);
    float* const numbers = frame.memory->New<float>(frame.rows * columns);
    for (int64_t r = 0; r < frame.rows; ++r) {
      float* const row = numbers + r * columns;
      std::copy_n(x[r], columns, row);
      for (int64_t c = 0; in.size() == 2 && c < num_optional_; ++c) {
        if (!frame.In<uint8_t>(in[1])[r][c]) row[c] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    // The rows of the output follow each other.
    MeanTreeSums({numbers, frame.rows, columns}, Nodes(), Roots(), max_depth_,
                 frame.Out<float>(out[0]).data);
    return Status();
  }

  int64_t CostOfRow(const Shapes&) const override { return 20 + roots_.size() * max_depth_ * 2; }

 private:
  TreeNodes Nodes() const {
    return {features_.items<int32_t>(), thresholds_.items<float>(), missing_left_.items<uint8_t>(),
            children_.items<int32_t>(), values_.items<float>()};
  }
  Matrix<const int32_t> Roots() const {
    return {roots_.items<int32_t>().data(), roots_.shape()[0], roots_.shape()[1]};
  }

  int64_t num_optional_ = 0, max_depth_ = 0;
  ArrayFile features_, thresholds_, missing_left_, children_, values_, roots_;
};

template <class From, class To>
class CastStep : public ElementwiseStep {
 public:
  Status Run(const Frame& frame) const override {
    const auto x = frame.In<From>(in[0]);
    const auto y = frame.Out<To>(out[0]);
    const int64_t width = frame.width(in[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t i = 0; i < width; ++i) y[r][i] = Convert(x[r][i]);
    }
    return Status();
  }

 private:
  static To Convert(From x) {
    if constexpr (std::is_same_v<To, uint8_t>) {
      return x != 0;
    } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, int64_t>) {
      constexpr float kLimit = 9.2233715e18f;  // the largest float that fits
      return static_cast<int64_t>(std::isnan(x) ? 0.0f : std::clamp(x, -kLimit, kLimit));
    } else {
      return static_cast<To>(x);
    }
  }
};

template <class From>
std::unique_ptr<Step> MakeCastFrom(Type to) {
  switch (to) {
    case Type::kFloat:
      return std::make_unique<CastStep<From, float>>();
    case Type::kInteger:
      return std::make_unique<CastStep<From, int64_t>>();
    case Type::kBool:
      return std::make_unique<CastStep<From, uint8_t>>();
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<Step> MakeCast(Register from, Type from_type, Register to, Type to_type) {
  std::unique_ptr<Step> step = from_type == Type::kFloat     ? MakeCastFrom<float>(to_type)
                               : from_type == Type::kInteger ? MakeCastFrom<int64_t>(to_type)
                                                             : MakeCastFrom<uint8_t>(to_type);
  step->name = "conversion";
  step->in = {from};
  step->out = {to};
  return step;
}

bool ActivationOf(const Step& step, Activation* activation) {
  const auto* const found = dynamic_cast<const ActivationStep*>(&step);
  if (found == nullptr) return false;
  *activation = found->activation();
  return true;
}

MakeStep FindDenseStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {
      {"activation", MakeActivation},
      {"add", MergeStep<MergeKind::kAdd>::Make},
      {"affine", AffineStep::Make},
      {"average", MergeStep<MergeKind::kAverage>::Make},
      {"boosted_trees", BoostedTreesStep::Make},
      {"concatenate", ConcatenateStep::Make},
      {"cross", CrossStep::Make},
      {"dense", DenseStep::Make},
      {"dot", DotStep::Make},
      {"dot_interaction", DotInteractionStep::Make},
      {"factorization_machine", FactorizationMachineStep::Make},
      {"mean", MeanStep::Make},
      {"multiply", MergeStep<MergeKind::kMultiply>::Make},
      {"reshape", ReshapeStep::Make}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
