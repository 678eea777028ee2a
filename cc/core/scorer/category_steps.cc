// Steps on categories: their rows and their statistics.
#include "cc/core/find_keys.h"
#include "cc/core/hash.h"
#include "cc/core/scorer/step_reader.h"

namespace twml::scorer {
namespace {

constexpr int kKeyBits = 62;

// The keys of `twml_ops/_category_hash.py`.
int64_t HashToKey(int64_t number, int64_t salt) {
  return ReduceToBits(HashPair(salt, number), kKeyBits);
}
int64_t KeyOfId(int64_t id, int64_t field) { return HashToKey(HashToKey(id, 0) + field, 0); }

// The rows of the categories that have one: of a matrix of fields, and of bags.
class CategoryRowsStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) { return Read(reader); }

  // The same with a hash to the first `hashed` rows of the field for the other categories.
  static std::unique_ptr<Step> MakeLearnedHash(StepReader& reader) {
    std::unique_ptr<CategoryRowsStep> step = Read(reader);
    const ArrayFile hashed = reader.Array("hashed", ItemType::kInt64, 1);
    if (!reader.ok()) return nullptr;
    step->hashed_.assign(hashed.items<int64_t>().begin(), hashed.items<int64_t>().end());
    const size_t fields =
        step->single_ > 0 ? step->single_ + reader.num_inputs() - 1 : reader.num_inputs();
    if (step->hashed_.size() != fields) reader.Fail("must have as many numbers of rows as fields");
    for (const int64_t rows : step->hashed_) {
      if (rows < 1) reader.Fail("must have at least one hashed row of each field");
    }
    return step;
  }

  SplitEntries split_entries() const override {
    return single_ > 0 ? SplitEntries::kRefused : SplitEntries::kEach;
  }

  Status Shape(Shapes* shapes) const override {
    if (single_ <= 0) return Status();
    TWML_RETURN_IF_ERROR(shapes->RequireVector(in[0], single_));
    return shapes->Set(out[0], {single_});
  }

  Status Run(const Frame& frame) const override {
    for (size_t i = 0; i < in.size(); ++i) {
      if (i == 0 && single_ > 0) {
        const auto ids = frame.In<int64_t>(in[0]);
        Find(frame, frame.rows * single_, frame.Out<int64_t>(out[0]).data,
             [&](int64_t k) { return std::make_pair(ids[k / single_][k % single_], k % single_); });
        continue;
      }
      const auto field = static_cast<int64_t>(i) + single_ - (single_ > 0);
      const auto* const ids = frame.Entries<int64_t>(in[i]);
      const int64_t n = frame.SplitsOf(in[i]).num_entries();
      auto* const rows = frame.memory->New<int64_t>(n);
      Find(frame, n, rows, [&](int64_t k) { return std::make_pair(ids[k], field); });
      frame.SetEntries(out[i], rows, in[i]);
    }
    return Status();
  }

  int64_t CostOfRow(const Shapes&) const override { return 50 + 60 * single_; }

 private:
  static std::unique_ptr<CategoryRowsStep> Read(StepReader& reader) {
    auto step = std::make_unique<CategoryRowsStep>();
    step->single_ = reader.Integer("single");
    if (step->single_ < 0 || step->single_ > kMaxWidth) {
      reader.Fail("must have a single in [0, " + std::to_string(kMaxWidth) + "]");
    }
    if (step->single_ > 0 && reader.num_inputs() == 0) reader.RequireInputs(1);
    reader.RequireOutputs(reader.num_inputs());
    for (size_t i = 0; reader.ok() && i < reader.num_inputs(); ++i) {
      if (i == 0 && step->single_ > 0) {
        reader.DenseInput(i, Type::kInteger);
        reader.DenseOutput(i, Type::kInteger);
      } else {
        reader.IdsInput(i);
        reader.EntriesOutput(i, Form::kIds, i);
      }
    }
    step->keys_ = reader.Array("keys", ItemType::kInt64, 1);
    step->rows_ = reader.Array("rows", ItemType::kInt64, 1);
    if (reader.ok() && step->keys_.size() != step->rows_.size()) {
      reader.Fail("must have as many keys as rows");
    }
    return step;
  }

  // Writes the row of each (id, field): that of its hash if it has none, and -1 for negative ids.
  template <class IdAndField>
  void Find(const Frame& frame, int64_t n, int64_t* rows, const IdAndField& id_and_field) const {
    int64_t* const keys = frame.memory->New<int64_t>(n);
    for (int64_t k = 0; k < n; ++k) {
      const auto [id, field] = id_and_field(k);
      keys[k] = KeyOfId(id, field);
    }
    FindKeysSerially(keys_.items<int64_t>(), {keys, n}, rows);
    const int64_t* const known = rows_.items<int64_t>().data();
    for (int64_t k = 0; k < n; ++k) {
      const auto [id, field] = id_and_field(k);
      const int64_t other = hashed_.empty() ? 0 : keys[k] % hashed_[field];
      rows[k] = id < 0 ? -1 : rows[k] < 0 ? other : known[rows[k]];
    }
  }

  int64_t single_ = 0;
  ArrayFile keys_, rows_;
  std::vector<int64_t> hashed_;  // of each field; empty: one
};

// The statistic of the category of each field and of each cross of fields.
class CategoryStatisticsStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.DenseInput(0, Type::kInteger);
    reader.DenseOutput(0, Type::kFloat);
    auto step = std::make_unique<CategoryStatisticsStep>();
    step->keys_ = reader.Array("keys", ItemType::kInt64, 1);
    step->statistics_ = reader.Array("statistics", ItemType::kFloat32, 1);
    step->crosses_ = reader.IntegerLists("crosses");
    if (!reader.ok()) return nullptr;
    if (step->statistics_.size() != step->keys_.size() + 1) {
      reader.Fail("must have one more statistic than keys");
    }
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    TWML_RETURN_IF_ERROR(shapes->RequireVector(in[0], -1));
    int64_t columns = shapes->width(in[0]);
    for (const auto& cross : crosses_) {
      for (const int64_t field : cross) {
        if (field < 0 || field >= columns) {
          return Invalid("crosses must be of the ", columns, " fields before them, got ", field);
        }
      }
      if (cross.empty()) return Invalid("crosses must be of at least one field");
      ++columns;
    }
    return shapes->Set(out[0], {columns});
  }

  Status Run(const Frame& frame) const override {
    constexpr int64_t kCrossSalt = 2;
    const int64_t fields = frame.width(in[0]), columns = frame.width(out[0]);
    const auto ids = frame.In<int64_t>(in[0]);
    int64_t* const keys = frame.memory->New<int64_t>(frame.rows * columns);
    for (int64_t r = 0; r < frame.rows; ++r) {
      int64_t* const row = keys + r * columns;
      for (int64_t f = 0; f < fields; ++f) row[f] = KeyOfId(ids[r][f], f);
      int64_t* next = row + fields;
      for (const auto& cross : crosses_) {
        int64_t key = row[cross[0]];
        for (size_t i = 1; i < cross.size(); ++i) key = HashToKey(key + row[cross[i]], kCrossSalt);
        *next++ = key;
      }
    }
    const int64_t n = frame.rows * columns;
    int64_t* const found = frame.memory->New<int64_t>(n);
    FindKeysSerially(keys_.items<int64_t>(), {keys, n}, found);
    const float* const statistics = statistics_.items<float>().data();
    float* const y = frame.Out<float>(out[0]).data;
    for (int64_t k = 0; k < n; ++k) y[k] = statistics[found[k] < 0 ? keys_.size() : found[k]];
    return Status();
  }

  int64_t CostOfRow(const Shapes& shapes) const override { return 50 + 60 * shapes.width(out[0]); }

 private:
  ArrayFile keys_, statistics_;
  std::vector<std::vector<int64_t>> crosses_;
};

}  // namespace

MakeStep FindCategoryStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {
      {"category_rows", CategoryRowsStep::Make},
      {"category_statistics", CategoryStatisticsStep::Make},
      {"learned_hash", CategoryRowsStep::MakeLearnedHash}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
