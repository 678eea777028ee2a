// Steps on fields: columns of numbers, and vectors of columns.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cc/core/scorer/step_reader.h"
#include "cc/core/scorer/table.h"

namespace twml::scorer {
namespace {

void PresentNumbers(StepReader& reader) {
  reader.RequireInputs(2);
  reader.DenseInput(0, Type::kFloat);
  reader.DenseInput(1, Type::kBool);
}

// The bucket of each number among the boundaries of its column, and its rank in [-1, 1].
class FieldQuantilesStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    PresentNumbers(reader);
    reader.RequireOutputs(2);
    reader.DenseOutput(0, Type::kInteger);
    reader.DenseOutput(1, Type::kFloat);
    const ArrayFile boundaries = reader.Array("boundaries", ItemType::kFloat32, 2);
    auto step = std::make_unique<FieldQuantilesStep>();
    if (!reader.ok()) return nullptr;
    const int64_t columns = boundaries.shape()[0], size = boundaries.shape()[1];
    if (columns > kMaxWidth) {
      reader.Fail("must have the boundaries of at most " + std::to_string(kMaxWidth) + " columns");
      return nullptr;
    }
    const float* const items = boundaries.items<float>().data();
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t i = 0; i < size; ++i) {
        if (std::isfinite(items[c * size + i])) step->finite_.push_back(items[c * size + i]);
      }
      step->splits_.push_back(static_cast<int64_t>(step->finite_.size()));
    }
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    const int64_t columns = static_cast<int64_t>(splits_.size()) - 1;
    for (const Register r : in) TWML_RETURN_IF_ERROR(shapes->RequireVector(r, columns));
    TWML_RETURN_IF_ERROR(shapes->Set(out[0], {columns}));
    return shapes->Set(out[1], {columns});
  }

  Status Run(const Frame& frame) const override {
    const auto numbers = frame.In<float>(in[0]);
    const auto present = frame.In<uint8_t>(in[1]);
    const auto buckets = frame.Out<int64_t>(out[0]);
    const auto ranks = frame.Out<float>(out[1]);
    const int64_t columns = static_cast<int64_t>(splits_.size()) - 1;
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        if (!present[r][c]) {
          buckets[r][c] = -1;
          ranks[r][c] = 0;
          continue;
        }
        const float x = numbers[r][c];
        const float *const begin = finite_.data() + splits_[c], *const end = begin +
                                                                             splits_[c + 1] -
                                                                             splits_[c];
        // A NaN is larger than all numbers.
        const float* const found = std::isnan(x) ? end : std::lower_bound(begin, end, x);
        const bool inner = found != begin && found != end;
        const float position = inner ? (x - found[-1]) / (found[0] - found[-1]) : 0.5f;
        const auto bucket = static_cast<float>(found - begin);
        buckets[r][c] = found - begin;
        ranks[r][c] = 2 * (bucket + position) / static_cast<float>(end - begin + 1) - 1;
      }
    }
    return Status();
  }

 private:
  std::vector<float> finite_;          // the finite boundaries of all columns
  std::vector<int64_t> splits_ = {0};  // where the boundaries of each column begin
};

// clip(sign(x) * log(1 + |x|) * scale + offset)
class FieldLogarithmsStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    PresentNumbers(reader);
    reader.DenseOutput(0, Type::kFloat);
    const ArrayFile scale = reader.Array("scale", ItemType::kFloat32, 1);
    const ArrayFile offset = reader.Array("offset", ItemType::kFloat32, 1);
    auto step = std::make_unique<FieldLogarithmsStep>();
    step->limit_ = static_cast<float>(reader.Number("limit"));
    if (!reader.ok()) return nullptr;
    if (scale.size() != offset.size()) reader.Fail("must have as many scales as offsets");
    if (!(step->limit_ >= 0)) reader.Fail("must have a limit that is not negative");
    step->scale_.assign(scale.items<float>().begin(), scale.items<float>().end());
    step->offset_.assign(offset.items<float>().begin(), offset.items<float>().end());
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    const auto columns = static_cast<int64_t>(scale_.size());
    for (const Register r : in) TWML_RETURN_IF_ERROR(shapes->RequireVector(r, columns));
    return shapes->Set(out[0], {columns});
  }

  Status Run(const Frame& frame) const override {
    const auto numbers = frame.In<float>(in[0]);
    const auto present = frame.In<uint8_t>(in[1]);
    const auto y = frame.Out<float>(out[0]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (size_t c = 0; c < scale_.size(); ++c) {
        const float x = numbers[r][c];
        // The logarithm of infinity times a scale of 0 would be NaN.
        const float size = std::min(std::abs(x), std::numeric_limits<float>::max());
        const float logarithm = std::copysign(std::log1p(size), x);
        const float scaled = logarithm * scale_[c] + offset_[c];
        y[r][c] = !present[r][c]       ? 0.0f
                  : std::isnan(scaled) ? scaled
                                       : std::clamp(scaled, -limit_, limit_);
      }
    }
    return Status();
  }

 private:
  std::vector<float> scale_, offset_;
  float limit_ = 0;
};

enum class Combiner { kSum, kMean, kSqrtn };

// A vector for each field, of one table: of a matrix of ids, and sums or means over bags.
class FieldEmbeddingStep : public Step {
 public:
  // The same, and ids that are not below the number of rows of their field minus 1 are errors. It
  // is an operation of its own, so that a version without it refuses the program.
  static std::unique_ptr<Step> MakeChecked(StepReader& reader) {
    std::unique_ptr<FieldEmbeddingStep> step = Read(reader);
    if (step != nullptr) step->checked_ = true;
    return step;
  }

  static std::unique_ptr<Step> Make(StepReader& reader) { return Read(reader); }

  Status Shape(Shapes* shapes) const override {
    if (fields_ > 0) TWML_RETURN_IF_ERROR(shapes->RequireVector(in[0], fields_));
    if (pooled_) return shapes->Set(out[0], {table_.dim()});
    return shapes->Set(out[0], {static_cast<int64_t>(sizes_.size()), table_.dim()});
  }

  bool reads_files() const override { return table_.in_file(); }

  Status Collect(const Frame& frame, FetchedRows* fetched) const override {
    if (fields_ > 0) {
      const int64_t* const rows = MatrixRows(frame);
      for (int64_t r = 0; r < frame.rows; ++r) {
        if (pooled_) {
          table_.CollectSum(rows + r * fields_, nullptr, fields_, fetched);
        } else {
          table_.CollectCopies(rows + r * fields_, fields_, fetched);
        }
      }
    }
    for (size_t i = 1; i < in.size(); i += 3) {
      ForBag(frame, i, [&](int64_t, const int64_t* rows, const float* factors, int64_t n, int64_t) {
        table_.CollectSum(rows, factors, n, fetched);
      });
    }
    return Status();
  }

  Status Run(const Frame& frame) const override {
    if (checked_) TWML_RETURN_IF_ERROR(CheckIds(frame));
    const auto y = frame.Out<float>(out[0]);
    const int64_t dim = table_.dim();
    TableRows table(table_, frame);
    if (fields_ > 0) {
      const int64_t n = frame.rows * fields_;
      const int64_t* const rows = MatrixRows(frame);
      for (int64_t r = 0; r < frame.rows; ++r) {
        const int64_t* const row = rows + r * fields_;
        if (pooled_) {
          table.Sum(row, nullptr, fields_, n - r * fields_, y[r]);
          continue;
        }
        for (int64_t f = 0; f < fields_; ++f) table.Copy(row[f], y[r] + f * dim);
      }
    } else if (pooled_) {
      for (int64_t r = 0; r < frame.rows; ++r) std::fill_n(y[r], dim, 0.0f);
    }
    float* const sum = frame.memory->New<float>(dim);
    for (size_t i = 1; i < in.size(); i += 3) {
      // Adds the vector of the bag to the sums, or writes it to its place.
      const int64_t field = fields_ + static_cast<int64_t>(i / 3);
      ForBag(
          frame, i,
          [&](int64_t r, const int64_t* rows, const float* factors, int64_t n, int64_t readable) {
            table.Sum(rows, factors, n, readable, pooled_ ? sum : y[r] + field * dim);
            for (int64_t d = 0; pooled_ && d < dim; ++d) y[r][d] += sum[d];
          });
    }
    if (pooled_ && pooling_ != Combiner::kSum) {
      const auto count = static_cast<float>(sizes_.size());
      const float divisor = pooling_ == Combiner::kMean ? count : std::sqrt(count);
      for (int64_t r = 0; r < frame.rows; ++r) {
        for (int64_t d = 0; d < dim; ++d) y[r][d] /= divisor;
      }
    }
    return Status();
  }

  int64_t CostOfRow(const Shapes&) const override {
    return 20 + static_cast<int64_t>(sizes_.size()) * (10 + table_.dim() / 8);
  }

 private:
  static std::unique_ptr<FieldEmbeddingStep> Read(StepReader& reader) {
    auto step = std::make_unique<FieldEmbeddingStep>();
    const size_t inputs = reader.num_inputs();
    if (inputs % 3 != 1) reader.Fail("must have ids of fields, or null, and 3 inputs of each bag");
    if (reader.has_input(0)) reader.DenseInput(0, Type::kInteger);
    for (size_t i = 1; reader.ok() && i < inputs; i += 3) reader.BatchInput(i);
    reader.DenseOutput(0, Type::kFloat);
    step->table_ = Table::Read(reader);
    step->sizes_ = reader.Integers("num_rows");
    const std::string pooling = reader.StringOrNull("pooling");
    step->pooled_ = !pooling.empty();
    if (step->pooled_) {
      step->pooling_ = static_cast<Combiner>(reader.Choice("pooling", {"sum", "mean", "sqrtn"}));
    }
    step->combiner_ =
        static_cast<Combiner>(reader.Choice("bag_combiner", {"sum", "mean", "sqrtn"}));
    if (!reader.ok()) return nullptr;
    int64_t start = 0;
    for (const int64_t size : step->sizes_) {
      if (size < 2 || size > step->table_.rows() - start) {
        reader.Fail("must have num_rows of at least 2 that add up to the rows of the table");
        return nullptr;
      }
      step->starts_.push_back(start);
      start += size;
    }
    const auto bags = static_cast<int64_t>(inputs / 3);
    step->fields_ = static_cast<int64_t>(step->sizes_.size()) - bags;
    if (step->fields_ < 0 || (step->fields_ > 0) != reader.has_input(0)) {
      reader.Fail("must have num_rows for each of its fields");
    }
    return step;
  }

  // Fails if an id has no row of its own in its field.
  Status CheckIds(const Frame& frame) const {
    if (fields_ > 0) {
      const auto ids = frame.In<int64_t>(in[0]);
      for (int64_t r = 0; r < frame.rows; ++r) {
        for (int64_t f = 0; f < fields_; ++f) {
          if (ids[r][f] >= sizes_[f] - 1) return Outside(frame, in[0], f, ids[r][f], f);
        }
      }
    }
    for (size_t i = 1; i < in.size(); i += 3) {
      const int64_t field = fields_ + static_cast<int64_t>(i / 3);
      const auto* const ids = frame.Entries<int64_t>(in[i]);
      const int64_t n = frame.SplitsOf(in[i]).num_entries();
      for (int64_t k = 0; k < n; ++k) {
        if (ids[k] < sizes_[field] - 1) continue;
        return Outside(frame, in[i], frame.views[in[i]].stride + k, ids[k], field);
      }
    }
    return Status();
  }

  // The error for an id. The position is the index of the entry in the request or, in a matrix, of
  // the column.
  Status Outside(const Frame& frame, Register r, int64_t position, int64_t id,
                 int64_t field) const {
    const std::string& name = frame.registers[r].name;
    return Invalid(name[0] == '#' ? "ids" : name, field < fields_ ? "[..., " : "[", position,
                   "] = ", id, " must be below ", sizes_[field] - 1,
                   ", the number of rows of its field minus 1");
  }

  // The row of a category: the first one of its field for negative ids.
  int64_t RowOf(int64_t id, int64_t field) const {
    return starts_[field] + (id < 0 ? 0 : 1 + id % (sizes_[field] - 1));
  }

  // The rows of the matrix of ids, [rows, fields].
  const int64_t* MatrixRows(const Frame& frame) const {
    const auto ids = frame.In<int64_t>(in[0]);
    int64_t* const rows = frame.memory->New<int64_t>(frame.rows * fields_);
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t f = 0; f < fields_; ++f) rows[r * fields_ + f] = RowOf(ids[r][f], f);
    }
    return rows;
  }

  // Calls body(r, rows, factors, n, readable) for each row r of the block: the n rows of the table
  // in the bag at in[i], and their factors or null. `rows` is valid up to `readable`.
  template <class Body>
  void ForBag(const Frame& frame, size_t i, const Body& body) const {
    const int64_t field = fields_ + static_cast<int64_t>(i / 3);
    const RowSplits splits = frame.Splits(in[i + 2]);
    const int64_t n = splits.num_entries();
    const auto* const ids = frame.Entries<int64_t>(in[i]);
    const auto* const values = frame.Entries<float>(in[i + 1]);
    int64_t* const rows = frame.memory->New<int64_t>(n);
    float* const weights = frame.memory->New<float>(n);
    for (int64_t k = 0; k < n; ++k) rows[k] = RowOf(ids[k], field);
    for (int64_t r = 0; r < frame.rows; ++r) {
      const int64_t begin = splits.begin(r), end = splits.end(r);
      const float* factors = values == nullptr ? nullptr : values + begin;
      if (combiner_ != Combiner::kSum) {
        const float total = Total(factors, end - begin);
        for (int64_t k = begin; k < end; ++k) {
          const float value = values == nullptr ? 1.0f : values[k];
          weights[k] = total == 0 ? 0.0f : value / total;  // the vector of such a bag is 0
        }
        factors = weights + begin;
      }
      body(r, rows + begin, factors, end - begin, n - begin);
    }
  }

  float Total(const float* values, int64_t n) const {
    double total = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double v = values == nullptr ? 1.0 : values[k];
      total += combiner_ == Combiner::kSqrtn ? v * v : std::fabs(v);
    }
    return static_cast<float>(combiner_ == Combiner::kSqrtn ? std::sqrt(total) : total);
  }

  Table table_;
  std::vector<int64_t> sizes_, starts_;  // of the rows of each field
  int64_t fields_ = 0;                   // of the matrix; bags follow
  bool pooled_ = false, checked_ = false;
  Combiner pooling_ = Combiner::kSum, combiner_ = Combiner::kSum;
};

}  // namespace

MakeStep FindFieldStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {
      {"checked_field_embedding", FieldEmbeddingStep::MakeChecked},
      {"field_embedding", FieldEmbeddingStep::Make},
      {"field_logarithms", FieldLogarithmsStep::Make},
      {"field_quantiles", FieldQuantilesStep::Make}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
