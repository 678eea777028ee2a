#include "cc/core/scorer/raw_columns.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "cc/core/scorer/category_id.h"
#include "cc/core/time_text.h"

namespace twml::scorer {
namespace {

// Numbers that the readers of training data refuse.
Status CheckFinite(float x, const std::string& column, int64_t row) {
  if (!std::isinf(x)) return Status();
  return Invalid("column '", column, "' must hold numbers that are finite in float32, got ", x,
                 " in row ", row);
}

// A categorical feature: the id of a category, or of the part of a time.
struct Category {
  // A time that the feature is made of.
  struct Time {
    std::string column;
    TimeFeature feature;
    std::vector<int64_t> ids;  // of the values of the part
  };

  // Finds the id of string `i` of a column, or of a missing one.
  Status Id(const StringColumn& column, int64_t i, int64_t row, int64_t* id) const {
    if (!time) {
      *id = CategoryId(column, i, hash);
      return Status();
    }
    const int64_t begin = column.offsets[i];
    const std::string_view text(reinterpret_cast<const char*>(column.bytes + begin),
                                static_cast<size_t>(column.offsets[i + 1] - begin));
    const int64_t part = PartOfTime(text, time->feature);
    if (part == kUnreadableTime) {
      return Invalid("column '", time->column, "' must hold dates and times in ISO form",
                     time->feature.unit == TimeUnit::kNone ? "" : " or in the unit of training",
                     ", got '", text.substr(0, 40), "' in row ", row);
    }
    *id = part == kMissingTime ? kMissingCategory : time->ids[part];
    return Status();
  }

  // The column of the request.
  const std::string& column() const { return time ? time->column : name; }

  std::string name, weights, separator;
  std::string arrays;  // of a bag: the prefix of the names of its features
  CategoryHash hash;
  bool bag = false;
  std::optional<Time> time;
};

class RawStep : public Step {
 public:
  Status Shape(Shapes* shapes) const override {
    for (const auto& [r, width] : dense_) TWML_RETURN_IF_ERROR(shapes->Set(r, {width}));
    return Status();
  }
  int64_t CostOfRow(const Shapes&) const override {
    return 10 + 30 * static_cast<int64_t>(in.size());
  }

  std::vector<std::pair<Register, int64_t>> dense_;  // outputs and their widths
};

// Writes the numbers to a matrix, with 0 for missing ones, and to a second matrix whether each is
// present.
class RawFieldNumbers : public RawStep {
 public:
  Status Run(const Frame& frame) const override {
    for (size_t c = 0; c < in.size(); ++c) {
      const auto column = frame.In<float>(in[c]);
      for (int64_t r = 0; r < frame.rows; ++r) {
        const float x = *column[r];
        TWML_RETURN_IF_ERROR(CheckFinite(x, names_[c], r));
        if (out[0] != kNoRegister) frame.Out<float>(out[0])[r][c] = std::isnan(x) ? 0.0f : x;
        if (out[1] != kNoRegister) frame.Out<uint8_t>(out[1])[r][c] = !std::isnan(x);
      }
    }
    return Status();
  }

  std::vector<std::string> names_;  // of the columns
};

// Numbers to entries: the position of each column and its number, if it is there.
class RawRaggedNumbers : public RawStep {
 public:
  Status Run(const Frame& frame) const override {
    const auto columns = static_cast<int64_t>(in.size());
    int64_t* const ids = frame.memory->New<int64_t>(frame.rows * columns);
    float* const values = frame.memory->New<float>(frame.rows * columns);
    int64_t* const splits = frame.memory->New<int64_t>(frame.rows + 1);
    int64_t n = 0;
    splits[0] = 0;
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const float x = *frame.In<float>(in[c])[r];
        if (std::isnan(x)) continue;
        TWML_RETURN_IF_ERROR(CheckFinite(x, names_[c], r));
        ids[n] = c;
        values[n++] = x;
      }
      splits[r + 1] = n;
    }
    if (out[0] != kNoRegister) frame.views[out[0]] = {ids, 0};
    if (out[1] != kNoRegister) frame.views[out[1]] = {values, 0};
    if (out[2] != kNoRegister) frame.views[out[2]] = {splits, 1};
    return Status();
  }

  std::vector<std::string> names_;  // of the columns
};

// Categories to a matrix of ids.
class RawFieldCategories : public RawStep {
 public:
  Status Run(const Frame& frame) const override {
    const auto y = frame.Out<int64_t>(out[0]);
    for (size_t c = 0; c < in.size(); ++c) {
      const StringColumn& column = ColumnOf(frame, in[c]);
      const int64_t stride = frame.views[in[c]].stride;
      for (int64_t r = 0; r < frame.rows; ++r) {
        TWML_RETURN_IF_ERROR(categories_[c].Id(column, r * stride, r, &y[r][c]));
      }
    }
    return Status();
  }

  std::vector<Category> categories_;
};

// The categories of a bag, and their weights, without missing ones.
class RawBag : public RawStep {
 public:
  Status Run(const Frame& frame) const override {
    const StringColumn& column = ColumnOf(frame, in[0]);
    const RowSplits given = frame.Splits(in[1]);
    const auto* const weights = frame.Entries<float>(in[2]);
    const int64_t most = given.total();
    int64_t* const ids = frame.memory->New<int64_t>(most);
    float* const values = frame.memory->New<float>(most);
    int64_t* const splits = frame.memory->New<int64_t>(frame.rows + 1);
    int64_t n = 0;
    splits[0] = 0;
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t k = given.begin(r); k < given.end(r); ++k) {
        const int64_t id = CategoryId(column, k, hash_);
        if (id == kMissingCategory) continue;
        ids[n] = id;
        values[n] = weights == nullptr ? 1.0f : weights[k];
        if (!std::isfinite(values[n++])) return Invalid("column '", weights_, "' must be finite");
      }
      splits[r + 1] = n;
    }
    frame.views[out[0]] = {ids, 0};
    if (out[1] != kNoRegister) frame.views[out[1]] = {values, 0};
    frame.views[out[2]] = {splits, 1};
    return Status();
  }

  CategoryHash hash_{};
  std::string weights_;  // name of their column
};

// All categories that are present, row by row in the order of the columns.
class RawRaggedCategories : public RawStep {
 public:
  // A column, and the row splits of a bag or kNoRegister.
  struct Part {
    Register column, row_splits;
    Category category;
  };

  Status Run(const Frame& frame) const override {
    int64_t most = 0;
    for (const Part& part : parts_) {
      const bool bag = part.row_splits != kNoRegister;
      most += bag ? frame.Splits(part.row_splits).total() : frame.rows;
    }
    int64_t* const ids = frame.memory->New<int64_t>(most);
    int64_t* const splits = frame.memory->New<int64_t>(frame.rows + 1);
    int64_t n = 0;
    splits[0] = 0;
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (const Part& part : parts_) {
        int64_t begin = r * frame.views[part.column].stride, end = begin + 1;
        if (part.row_splits != kNoRegister) {
          begin = frame.Splits(part.row_splits).begin(r);
          end = frame.Splits(part.row_splits).end(r);
        }
        for (int64_t k = begin; k < end; ++k) {
          int64_t id = kMissingCategory;
          TWML_RETURN_IF_ERROR(part.category.Id(ColumnOf(frame, part.column), k, r, &id));
          if (id != kMissingCategory) ids[n++] = id;
        }
      }
      splits[r + 1] = n;
    }
    frame.views[out[0]] = {ids, 0};
    frame.views[out[1]] = {splits, 1};
    return Status();
  }

  std::vector<Part> parts_;
};

// Reads the member "raw" and builds the steps.
class Builder {
 public:
  Builder(RegisterTable* registers, std::vector<RawColumn>* columns,
          std::vector<std::unique_ptr<Step>>* steps)
      : registers_(*registers), columns_(*columns), steps_(*steps) {}

  Status Build(const Json& raw) {
    const Json *const layout = raw.Find("layout"), *const numbers = raw.Find("numbers");
    const Json *const categories = raw.Find("categories"), *const sparse = raw.Find("sparse");
    if (layout == nullptr || numbers == nullptr || !numbers->is(Json::Kind::kArray) ||
        categories == nullptr || !categories->is(Json::Kind::kArray) || sparse == nullptr ||
        !sparse->is(Json::Kind::kBool)) {
      return Invalid("\"raw\" must have a layout, numbers, categories, and sparse");
    }
    if (layout->string() != "fields" && layout->string() != "ragged") {
      return Invalid("\"raw\" must have the layout 'fields' or 'ragged', got '", layout->string(),
                     "'");
    }
    const bool fields = layout->string() == "fields";
    for (const Json& number : numbers->items()) {
      if (!number.is(Json::Kind::kString)) return Invalid("numbers must be names of columns");
      TWML_RETURN_IF_ERROR(AddColumn(number.string(), Form::kDense));
      numbers_.push_back(columns_.back().r);
      number_names_.push_back(number.string());
      registers_.Produce(numbers_.back(), Type::kFloat);
    }
    for (const Json& item : categories->items()) TWML_RETURN_IF_ERROR(ReadCategory(item));
    TWML_RETURN_IF_ERROR(AddCategoryColumns());
    if (sparse->boolean()) {
      // The columns of raw sparse features are features themselves.
      columns_.push_back({"ids", Form::kIds, registers_.Find("sparse_ids")});
      columns_.push_back({"values", Form::kValues, registers_.Find("sparse_values")});
      columns_.push_back(
          {"ids_row_splits", Form::kRowSplits, registers_.Find("sparse_row_splits")});
    }
    if (!numbers_.empty()) TWML_RETURN_IF_ERROR(fields ? FieldNumbers() : RaggedNumbers());
    if (!categories_.empty()) {
      TWML_RETURN_IF_ERROR(fields ? FieldCategories() : RaggedCategories());
    }
    return Status();
  }

 private:
  Status AddColumn(const std::string& name, Form form) {
    const auto [known, is_new] = by_name_.emplace(name, kNoRegister);
    if (!is_new) return Invalid("\"raw\" has the column '", name, "' twice");
    known->second = registers_.AddHidden(name, form);
    columns_.push_back({name, form, known->second});
    return Status();
  }

  Status ReadCategory(const Json& item) {
    const Json *const name = item.Find("name"), *const key = item.Find("key");
    const Json *const bag = item.Find("bag"), *const weights = item.Find("weights");
    // Older files do not have these.
    const Json *const typed = item.Find("typed"), *const separator = item.Find("separator");
    const Json* const arrays = item.Find("arrays");
    if (name == nullptr || !name->is(Json::Kind::kString) || key == nullptr ||
        key->items().size() != 2 || !key->items()[0].is(Json::Kind::kInteger) ||
        !key->items()[1].is(Json::Kind::kInteger) || bag == nullptr ||
        !bag->is(Json::Kind::kBool) || weights == nullptr ||
        (typed != nullptr && !typed->is(Json::Kind::kBool)) ||
        (separator != nullptr && !separator->is(Json::Kind::kString)) ||
        (arrays != nullptr && !arrays->is(Json::Kind::kString))) {
      return Invalid("categories must have a name, a key of two integers, bag and weights");
    }
    const SipKey sip_key = {static_cast<uint64_t>(key->items()[0].integer()),
                            static_cast<uint64_t>(key->items()[1].integer())};
    categories_.push_back({name->string(),
                           weights->string(),
                           separator == nullptr ? std::string() : separator->string(),
                           arrays == nullptr ? "bag_" + name->string() : arrays->string(),
                           {sip_key, typed != nullptr && typed->boolean()},
                           bag->boolean(),
                           std::nullopt});
    const Json* const time = item.Find("time");  // of features of times
    return time == nullptr ? Status() : ReadTime(*time, &categories_.back());
  }

  Status ReadTime(const Json& item, Category* category) {
    const Json *const column = item.Find("column"), *const part = item.Find("part");
    const Json* const unit = item.Find("unit");
    if (column == nullptr || !column->is(Json::Kind::kString) || part == nullptr ||
        !part->is(Json::Kind::kString) || unit == nullptr || !unit->is(Json::Kind::kString) ||
        category->bag) {
      return Invalid("the time of a category must have a column, a part and a unit");
    }
    Category::Time time;
    time.column = column->string();
    TWML_RETURN_IF_ERROR(MakeTimeFeature(part->string(), unit->string(), &time.feature));
    for (int64_t value = 0; value < LimitOf(time.feature.part); ++value) {
      const std::string token = std::to_string(value);
      time.ids.push_back(CategoryId(reinterpret_cast<const uint8_t*>(token.data()),
                                    static_cast<int64_t>(token.size()), category->hash));
    }
    category->time = std::move(time);
    return Status();
  }

  // In the order of `Scorer.columns`.
  Status AddCategoryColumns() {
    for (const Category& c : categories_) {
      if (c.time) continue;
      TWML_RETURN_IF_ERROR(AddColumn(c.name, c.bag ? Form::kBagStrings : Form::kStrings));
      columns_.back().separator = c.separator;
    }
    std::vector<std::string> times;  // each once, for all features that are made of it
    for (const Category& c : categories_) {
      if (!c.time || std::find(times.begin(), times.end(), c.column()) != times.end()) continue;
      times.push_back(c.column());
      TWML_RETURN_IF_ERROR(AddColumn(c.column(), Form::kStrings));
      columns_.back().is_time = true;
    }
    for (const Category& c : categories_) {
      if (!c.bag) continue;
      TWML_RETURN_IF_ERROR(AddColumn(c.name + "_row_splits", Form::kRowSplits));
      registers_.JoinEntries(Column(c.name), Column(c.name + "_row_splits"));
    }
    for (const Category& c : categories_) {
      if (!c.bag || c.weights.empty()) continue;
      TWML_RETURN_IF_ERROR(AddColumn(c.weights, Form::kValues));
      columns_.back().separator = c.separator;
      registers_.JoinEntries(Column(c.name), Column(c.weights));
    }
    return Status();
  }

  Register Column(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? kNoRegister : found->second;
  }

  // The register of a feature, or kNoRegister if the model has no such input.
  Status Feature(const std::string& name, Form form, Register* out) const {
    *out = registers_.Find(name);
    if (*out == kNoRegister || registers_.info(*out).form == form) return Status();
    return Invalid("the input '", name, "' has another form than the feature of raw columns");
  }

  void AddStep(std::unique_ptr<Step> step, const char* name) {
    step->name = name;
    steps_.push_back(std::move(step));
  }

  Status FieldNumbers() {
    auto step = std::make_unique<RawFieldNumbers>();
    step->in = numbers_;
    step->names_ = number_names_;
    step->out = {kNoRegister, kNoRegister};
    TWML_RETURN_IF_ERROR(Feature("continuous", Form::kDense, &step->out[0]));
    TWML_RETURN_IF_ERROR(Feature("continuous_present", Form::kDense, &step->out[1]));
    for (const size_t i : {0, 1}) {
      if (step->out[i] == kNoRegister) continue;
      registers_.Produce(step->out[i], i == 0 ? Type::kFloat : Type::kBool);
      step->dense_.emplace_back(step->out[i], static_cast<int64_t>(numbers_.size()));
    }
    AddStep(std::move(step), "numbers");
    return Status();
  }

  Status RaggedNumbers() {
    auto step = std::make_unique<RawRaggedNumbers>();
    step->in = numbers_;
    step->names_ = number_names_;
    step->out = {kNoRegister, kNoRegister, kNoRegister};
    TWML_RETURN_IF_ERROR(Feature("continuous_ids", Form::kIds, &step->out[0]));
    TWML_RETURN_IF_ERROR(Feature("continuous_values", Form::kValues, &step->out[1]));
    TWML_RETURN_IF_ERROR(Feature("continuous_row_splits", Form::kRowSplits, &step->out[2]));
    AddStep(std::move(step), "numbers");
    return Status();
  }

  Status FieldCategories() {
    auto fields = std::make_unique<RawFieldCategories>();
    for (const Category& c : categories_) {
      if (!c.bag) {
        fields->in.push_back(Column(c.column()));
        fields->categories_.push_back(c);
        continue;
      }
      auto step = std::make_unique<RawBag>();
      step->hash_ = c.hash;
      step->weights_ = c.weights;
      step->in = {Column(c.name), Column(c.name + "_row_splits"),
                  c.weights.empty() ? kNoRegister : Column(c.weights)};
      step->out = {kNoRegister, kNoRegister, kNoRegister};
      TWML_RETURN_IF_ERROR(Feature(c.arrays + "_ids", Form::kIds, &step->out[0]));
      TWML_RETURN_IF_ERROR(Feature(c.arrays + "_values", Form::kValues, &step->out[1]));
      TWML_RETURN_IF_ERROR(Feature(c.arrays + "_row_splits", Form::kRowSplits, &step->out[2]));
      if (step->out[0] == kNoRegister || step->out[2] == kNoRegister) continue;
      AddStep(std::move(step), "a bag of categories");
    }
    Register made = kNoRegister;
    TWML_RETURN_IF_ERROR(Feature("categorical", Form::kDense, &made));
    if (made == kNoRegister || fields->in.empty()) return Status();
    registers_.Produce(made, Type::kInteger);
    fields->out = {made};
    fields->dense_.emplace_back(made, static_cast<int64_t>(fields->in.size()));
    AddStep(std::move(fields), "categories");
    return Status();
  }

  Status RaggedCategories() {
    auto step = std::make_unique<RawRaggedCategories>();
    for (const Category& c : categories_) {
      const Register splits = c.bag ? Column(c.name + "_row_splits") : kNoRegister;
      step->parts_.push_back({Column(c.column()), splits, c});
      step->in.push_back(Column(c.column()));
      if (c.bag) step->in.push_back(splits);
    }
    step->out = {kNoRegister, kNoRegister};
    TWML_RETURN_IF_ERROR(Feature("categorical_ids", Form::kIds, &step->out[0]));
    TWML_RETURN_IF_ERROR(Feature("categorical_row_splits", Form::kRowSplits, &step->out[1]));
    if (step->out[0] == kNoRegister || step->out[1] == kNoRegister) return Status();
    AddStep(std::move(step), "categories");
    return Status();
  }

  RegisterTable& registers_;
  std::vector<RawColumn>& columns_;
  std::map<std::string, Register> by_name_;  // of the columns
  std::vector<std::unique_ptr<Step>>& steps_;
  std::vector<Register> numbers_;
  std::vector<std::string> number_names_;
  std::vector<Category> categories_;
};

}  // namespace

Status ReadRawColumns(const Json& raw, RegisterTable* registers, std::vector<RawColumn>* columns,
                      std::vector<std::unique_ptr<Step>>* steps) {
  return Builder(registers, columns, steps).Build(raw);
}

}  // namespace twml::scorer
