// Steps that make ids of categories. Raw columns have steps of their own.
#include <charconv>
#include <cstring>

#include "cc/core/scorer/category_id.h"
#include "cc/core/scorer/step_reader.h"

namespace twml::scorer {
namespace {

enum class Kind { kStrings, kIntegers, kBools };

std::vector<SipKey> ReadKeys(StepReader& reader) {
  std::vector<SipKey> keys;
  for (const std::vector<int64_t>& key : reader.IntegerLists("keys")) {
    if (key.size() == 2) {
      keys.push_back({static_cast<uint64_t>(key[0]), static_cast<uint64_t>(key[1])});
    } else {
      reader.Fail("must have two integers in each of the \"keys\"");
    }
  }
  return keys;
}

int64_t IdOfInteger(int64_t number, SipKey key) {
  char text[24];
  const auto written = std::to_chars(text, text + sizeof(text), number);
  return CategoryId(reinterpret_cast<const uint8_t*>(text), written.ptr - text, key);
}

int64_t IdOfBool(bool value, SipKey key) {
  const char* const text = value ? "true" : "false";
  return CategoryId(reinterpret_cast<const uint8_t*>(text), static_cast<int64_t>(std::strlen(text)),
                    key);
}

// A matrix of categories, with a key for each column, to ids. Integers and bools are hashed as
// their text.
class HashStringsStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    auto step = std::make_unique<HashStringsStep>();
    step->kind_ = static_cast<Kind>(reader.Choice("kind", {"strings", "integers", "bools"}));
    step->keys_ = ReadKeys(reader);
    if (step->kind_ == Kind::kStrings) {
      reader.StringsInput(0);
    } else {
      reader.DenseInput(0, step->kind_ == Kind::kIntegers ? Type::kInteger : Type::kBool);
    }
    reader.DenseOutput(0, Type::kInteger);
    return step;
  }

  Status Shape(Shapes* shapes) const override {
    const auto columns = static_cast<int64_t>(keys_.size());
    if (shapes->width(in[0]) == columns) return shapes->Set(out[0], {columns});
    return Invalid("a row of '", shapes->name(in[0]), "' must have ", columns, " categories, got ",
                   shapes->width(in[0]));
  }

  Status Run(const Frame& frame) const override {
    const auto y = frame.Out<int64_t>(out[0]);
    const auto columns = static_cast<int64_t>(keys_.size());
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) y[r][c] = Id(frame, r, c);
    }
    return Status();
  }

  int64_t CostOfRow(const Shapes&) const override {
    return 10 + 30 * static_cast<int64_t>(keys_.size());
  }

 private:
  int64_t Id(const Frame& frame, int64_t row, int64_t column) const {
    const SipKey key = keys_[static_cast<size_t>(column)];
    switch (kind_) {
      case Kind::kStrings:
        return CategoryId(ColumnOf(frame, in[0]), row * frame.views[in[0]].stride + column, key);
      case Kind::kIntegers:
        return IdOfInteger(frame.In<int64_t>(in[0])[row][column], key);
      case Kind::kBools:
        return IdOfBool(frame.In<uint8_t>(in[0])[row][column] != 0, key);
    }
    return kMissingCategory;
  }

  Kind kind_ = Kind::kStrings;
  std::vector<SipKey> keys_;
};

// The categories of bags to ids. Empty strings are left out.
class HashBagStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(3);
    reader.RequireOutputs(3);
    auto step = std::make_unique<HashBagStep>();
    step->integers_ = reader.Choice("kind", {"strings", "integers"}) == 1;
    const std::vector<SipKey> keys = ReadKeys(reader);
    if (step->integers_) {
      reader.BatchInput(0);
    } else {
      reader.BagInput(0);
    }
    reader.BatchOutput(0);
    if (reader.ok() && keys.size() != 1) reader.Fail("must have one key");
    if (reader.ok()) step->key_ = keys[0];
    return step;
  }

  Status Shape(Shapes*) const override { return Status(); }

  Status Run(const Frame& frame) const override {
    const RowSplits given = frame.Splits(in[2]);
    int64_t* const ids = frame.memory->New<int64_t>(given.total());
    int64_t* const splits = frame.memory->New<int64_t>(frame.rows + 1);
    const auto* const numbers = integers_ ? frame.Entries<int64_t>(in[0]) : nullptr;
    int64_t n = 0;
    splits[0] = 0;
    for (int64_t r = 0; r < frame.rows; ++r) {
      for (int64_t k = given.begin(r); k < given.end(r); ++k) {
        const int64_t id =
            integers_ ? IdOfInteger(numbers[k], key_) : CategoryId(ColumnOf(frame, in[0]), k, key_);
        if (id != kMissingCategory) ids[n++] = id;
      }
      splits[r + 1] = n;
    }
    frame.views[out[0]] = {ids, 0};
    frame.views[out[2]] = {splits, 1};
    return Status();
  }

 private:
  bool integers_ = false;
  SipKey key_{};
};

}  // namespace

MakeStep FindStringStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {{"hash_bag", HashBagStep::Make},
                                                         {"hash_strings", HashStringsStep::Make}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
