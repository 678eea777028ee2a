// Steps for the vectors of fields, [B, F, D]: linear combinations, self-attention, the patches of a
// convolution, and layer normalization.
#include <algorithm>
#include <cmath>
#include <utility>

#include "cc/core/scorer/packed_matrix.h"
#include "cc/core/scorer/softmax.h"
#include "cc/core/scorer/step_reader.h"
#include "cc/core/simd_dispatch.h"

namespace twml::scorer {
namespace {

Status RequireVectors(const Shapes& shapes, Register r) {
  if (shapes.dims(r).size() == 2) return Status();
  return Invalid("'", shapes.name(r), "' must have the shape [B, any, any]");
}

// L linear combinations of the F vectors: kernel^T . x, [B, F, D] -> [B, L, D].
class CombineVectorsStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    const ArrayFile kernel = reader.Array("kernel", ItemType::kFloat32, 2);
    if (!reader.ok()) return nullptr;
    auto step = std::make_unique<CombineVectorsStep>();
    step->fields_ = kernel.shape()[0];
    step->outputs_ = kernel.shape()[1];
    const float* const items = kernel.items<float>().data();
    step->kernel_.resize(kernel.size());
    for (int64_t k = 0; k < kernel.size(); ++k) {
      step->kernel_[k % step->outputs_ * step->fields_ + k / step->outputs_] = items[k];
    }
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    TWML_RETURN_IF_ERROR(RequireVectors(*shapes, in[0]));
    const auto& dims = shapes->dims(in[0]);
    if (dims[0] != fields_) {
      return Invalid("'", shapes->name(in[0]), "' must have ", fields_, " vectors, got ", dims[0]);
    }
    return shapes->Set(out[0], {outputs_, dims[1]});
  }

  Status Run(const Frame& frame) const override {
    const int64_t width = frame.shapes[in[0]].dims[1];
    if (frame.width(out[0]) == 0) return Status();
    float* const packed = frame.memory->New<float>(PackedSize(fields_, width));
    const auto x = frame.In<float>(in[0]);
    const auto y = frame.Out<float>(out[0]);
    const auto dense = GetScoringKernels().dense;
    for (int64_t r = 0; r < frame.rows; ++r) {
      const PackedWeights vectors = PackMatrix(x[r], fields_, width, width, 1, packed);
      dense(vectors, nullptr, Activation::kLinear, kernel_.data(), fields_, outputs_, y[r], width);
    }
    return Status();
  }

  int64_t CostOfRow(const Shapes& shapes) const override {
    return 20 + shapes.width(in[0]) * (outputs_ + 8) / 32;
  }

 private:
  int64_t fields_ = 0, outputs_ = 0;
  std::vector<float> kernel_;  // [L, F]
};

// Of the queries, keys and values of F vectors, and for each of the heads, which divide D:
// softmax(query . key^T / sqrt(D / heads)) . value, [B, F, D] each -> [B, F, D].
class SelfAttentionStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(3);
    for (size_t i = 0; i < 3; ++i) reader.DenseInput(i, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    auto step = std::make_unique<SelfAttentionStep>();
    step->heads_ = reader.Integer("num_heads");
    if (reader.ok() && (step->heads_ < 1 || step->heads_ > kMaxWidth)) {
      reader.Fail("must have a num_heads of at least 1 and at most " + std::to_string(kMaxWidth));
    }
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    TWML_RETURN_IF_ERROR(RequireVectors(*shapes, in[0]));
    const auto& dims = shapes->dims(in[0]);
    for (const size_t i : {1, 2}) {
      if (shapes->dims(in[i]) != dims) {
        return Invalid("'", shapes->name(in[i]), "' must have the shape of '", shapes->name(in[0]),
                       "'");
      }
    }
    if (dims[0] > kMaxVectors) {
      return Invalid("'", shapes->name(in[0]), "' must have at most ", kMaxVectors,
                     " vectors, got ", dims[0]);
    }
    if (dims[1] % heads_ != 0) {
      return Invalid("num_heads must divide the width ", dims[1], ", got ", heads_);
    }
    return shapes->Set(out[0], dims);
  }

  Status Run(const Frame& frame) const override {
    if (frame.width(out[0]) == 0) return Status();
    const int64_t fields = frame.shapes[in[0]].dims[0], width = frame.shapes[in[0]].dims[1];
    const int64_t part = width / heads_;
    const float scale = 1 / std::sqrt(static_cast<float>(part));
    float* const packed =
        frame.memory->New<float>(std::max(PackedSize(part, fields), PackedSize(fields, part)));
    float* const scores = frame.memory->New<float>(fields * fields);
    const auto queries = frame.In<float>(in[0]), keys = frame.In<float>(in[1]);
    const auto values = frame.In<float>(in[2]);
    const auto y = frame.Out<float>(out[0]);
    const auto dense = GetScoringKernels().dense;
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t at = 0; at < width; at += part) {
        const PackedWeights key = PackMatrix(keys[r] + at, part, 1, fields, width, packed);
        dense(key, nullptr, Activation::kLinear, queries[r] + at, width, fields, scores, fields);
        for (int64_t f = 0; f < fields; ++f) {
          float* const row = scores + f * fields;
          Softmax(scale, row, fields, row);
        }
        const PackedWeights value = PackMatrix(values[r] + at, fields, width, part, 1, packed);
        dense(value, nullptr, Activation::kLinear, scores, fields, fields, y[r] + at, width);
      }
    }
    return Status();
  }

  int64_t CostOfRow(const Shapes& shapes) const override {
    const auto& dims = shapes.dims(in[0]);
    return 20 + dims[0] * dims[0] * (dims[1] / 16 + heads_);
  }

 private:
  static constexpr int64_t kMaxVectors = 1 << 12;  // whose scores are 64 MiB

  int64_t heads_ = 1;
};

// The size * size numbers around each of the F D numbers, with zeros outside, [B, F, D] ->
// [B, F, D, size * size]: a convolution with padding is a dense layer on them.
class PatchesStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    auto step = std::make_unique<PatchesStep>();
    step->size_ = reader.Integer("size");
    if (reader.ok() && (step->size_ < 1 || step->size_ > kMaxSize)) {
      reader.Fail("must have a size in [1, " + std::to_string(kMaxSize) + "]");
    }
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    TWML_RETURN_IF_ERROR(RequireVectors(*shapes, in[0]));
    const auto& dims = shapes->dims(in[0]);
    return shapes->Set(out[0], {dims[0], dims[1], size_ * size_});
  }

  Status Run(const Frame& frame) const override {
    const int64_t fields = frame.shapes[in[0]].dims[0], width = frame.shapes[in[0]].dims[1];
    const int64_t before = (size_ - 1) / 2;
    const auto x = frame.In<float>(in[0]);
    const auto y = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      const float* const from = x[r];
      float* to = y[r];
      for (int64_t f = 0; f < fields; ++f) {
        for (int64_t d = 0; d < width; ++d) {
          for (int64_t a = f - before; a < f - before + size_; ++a) {
            for (int64_t b = d - before; b < d - before + size_; ++b) {
              const bool inside = a >= 0 && a < fields && b >= 0 && b < width;
              *to++ = inside ? from[a * width + b] : 0.0f;
            }
          }
        }
      }
    }
    return Status();
  }

  int64_t CostOfRow(const Shapes& shapes) const override { return 10 + shapes.width(out[0]); }

 private:
  static constexpr int64_t kMaxSize = 1 << 12;

  int64_t size_ = 1;
};

// (x - mean) / sqrt(variance + epsilon), on the last axis.
class LayerNormalizationStep : public LastAxisStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    auto step = std::make_unique<LayerNormalizationStep>();
    step->epsilon_ = static_cast<float>(reader.Number("epsilon"));
    return step;
  }

 private:
  void Apply(const float* x, int64_t n, float* y) const override {
    const auto count = static_cast<float>(n);
    float mean = 0, variance = 0;
    for (int64_t d = 0; d < n; ++d) mean += x[d];
    mean /= count;
    for (int64_t d = 0; d < n; ++d) {
      y[d] = x[d] - mean;
      variance += y[d] * y[d];
    }
    const float factor = 1 / std::sqrt(variance / count + epsilon_);
    for (int64_t d = 0; d < n; ++d) y[d] *= factor;
  }

  float epsilon_ = 0;
};

}  // namespace

MakeStep FindVectorStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {
      {"combine_vectors", CombineVectorsStep::Make},
      {"layer_normalization", LayerNormalizationStep::Make},
      {"patches", PatchesStep::Make},
      {"self_attention", SelfAttentionStep::Make}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
