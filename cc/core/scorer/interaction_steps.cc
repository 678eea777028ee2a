// Steps for interactions of dense registers: crosses, products of vectors, trees.
#include <algorithm>
#include <limits>
#include <utility>

#include "cc/core/scorer/step_reader.h"
#include "cc/core/simd_dispatch.h"
#include "cc/core/tree_sums.h"

namespace twml::scorer {
namespace {

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
    if (frame.width(out[0]) == 0) return Status();
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

}  // namespace

MakeStep FindInteractionStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {
      {"boosted_trees", BoostedTreesStep::Make},
      {"cross", CrossStep::Make},
      {"dot", DotStep::Make},
      {"dot_interaction", DotInteractionStep::Make},
      {"factorization_machine", FactorizationMachineStep::Make}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
