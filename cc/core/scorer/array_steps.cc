// Steps that join, reshape and convert dense registers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "cc/core/scorer/step_reader.h"

namespace twml::scorer {
namespace {

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

// The columns [begin, begin + size) of vectors.
class SliceStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInputOfAnyType(0);
    reader.DenseOutputOfInputType(0);
    auto step = std::make_unique<SliceStep>();
    step->begin_ = reader.Integer("begin");
    step->size_ = reader.Integer("size");
    if (reader.ok() && (step->begin_ < 0 || step->size_ < 0)) {
      reader.Fail("must have a begin and a size that are not negative");
    }
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    TWML_RETURN_IF_ERROR(shapes->RequireVector(in[0], -1));
    const int64_t width = shapes->width(in[0]);
    if (begin_ <= width && size_ <= width - begin_) return shapes->Set(out[0], {size_});
    return Invalid("the columns ", begin_, " and the ", size_, " from there on must be among the ",
                   width, " of '", shapes->name(in[0]), "'");
  }

  Status Run(const Frame& frame) const override {
    const int64_t item = SizeOf(frame.registers[out[0]].type);
    const auto x = frame.In<char>(in[0]);
    const auto y = frame.Out<char>(out[0]);
    for (int64_t r = 0; r < frame.rows && size_ > 0; ++r) {
      std::memcpy(y.data + r * y.stride * item, x.data + (r * x.stride + begin_) * item,
                  static_cast<size_t>(size_ * item));
    }
    return Status();
  }

 private:
  int64_t begin_ = 0, size_ = 0;
};

// The outputs of a model side by side, of any shapes.
class OutputsStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    for (size_t i = 0; i < reader.num_inputs(); ++i) reader.DenseInput(i, Type::kFloat);
    reader.DenseOutput(0, Type::kFloat);
    return std::make_unique<OutputsStep>();
  }

  Status Shape(Shapes* shapes) const override {
    int64_t width = 0;
    for (const Register r : in) width += shapes->width(r);
    return shapes->Set(out[0], {width});
  }

  Status Run(const Frame& frame) const override {
    const auto y = frame.Out<float>(out[0]);
    int64_t at = 0;
    for (const Register r : in) {
      const auto x = frame.In<float>(r);
      for (int64_t b = 0; b < frame.rows; ++b) std::copy_n(x[b], frame.width(r), y[b] + at);
      at += frame.width(r);
    }
    return Status();
  }
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

MakeStep FindArrayStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {
      {"add", MergeStep<MergeKind::kAdd>::Make},
      {"average", MergeStep<MergeKind::kAverage>::Make},
      {"concatenate", ConcatenateStep::Make},
      {"mean", MeanStep::Make},
      {"multiply", MergeStep<MergeKind::kMultiply>::Make},
      {"outputs", OutputsStep::Make},
      {"reshape", ReshapeStep::Make},
      {"slice", SliceStep::Make}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
