// Programs of one step of each kind, with sizes and attributes at the ends of their ranges, and
// requests for them.
#ifndef TWML_TESTS_CC_STEP_PROGRAMS_H_
#define TWML_TESTS_CC_STEP_PROGRAMS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/core/scorer/scorer.h"
#include "tests/cc/scorer_folders.h"

namespace twml::step_programs {

using scorer::Form;
using scorer::Request;
using scorer::RequestArray;
using scorer::Scorer;

struct Array {
  const char *name, *type;
  int rank;
};

// Each '#' of the attributes is an integer. `ids` is whether the output has to be looked up.
struct Kind {
  const char* op;
  const char* inputs;  // d: dense, b: ids, values, row splits; i: ids and row splits; s: strings
  std::vector<Array> arrays;
  const char* attributes;
  int outputs = 1;
  bool ids = false;
};

inline const std::vector<Kind>& Kinds() {
  static const auto* const kinds = new std::vector<Kind>{
      {"add", "dd", {}, ""},
      {"average", "dd", {}, ""},
      {"mean", "dd", {}, ""},
      {"multiply", "d", {}, ""},
      {"outputs", "dd", {}, ""},
      {"concatenate", "dd", {}, "'axis': #"},
      {"reshape", "d", {}, "'shape': [#, #]"},
      {"slice", "d", {}, "'begin': #, 'size': #"},
      {"activation", "d", {}, "'name': 'softmax'"},
      {"affine", "d", {{"factor", "<f4", 1}, {"offset", "<f4", 1}}, ""},
      {"dense", "d", {{"kernel", "<f4", 2}}, ""},
      {"logit", "d", {}, ""},
      {"platt_scaling",
       "d",
       {{"slopes", "<f4", 1}, {"intercepts", "<f4", 1}, {"base_rates", "<f4", 1}},
       "'from_logits': false, 'nan': 'base_rate'"},
      {"isotonic_calibration",
       "d",
       {{"corner_scores", "<f4", 2}, {"corner_values", "<f4", 2}, {"base_rates", "<f4", 1}},
       "'nan': 'propagate'"},
      {"cross", "ddd", {}, "'diag_scale': #"},
      {"dot", "dd", {}, ""},
      {"dot_interaction", "d", {}, ""},
      {"factorization_machine", "d", {}, "'pool': true"},
      {"factorization_machine", "dd", {}, "'pool': false"},
      {"boosted_trees",
       "dd",
       {{"features", "<i4", 1},
        {"thresholds", "<f4", 1},
        {"missing_left", "|u1", 1},
        {"children", "<i4", 2},
        {"values", "<f4", 1},
        {"roots", "<i4", 2}},
       "'num_optional': #, 'max_depth': #"},
      {"combine_vectors", "d", {{"kernel", "<f4", 2}}, ""},
      {"layer_normalization", "d", {}, "'epsilon': #"},
      {"patches", "d", {}, "'size': #"},
      {"self_attention", "ddd", {}, "'num_heads': #"},
      {"field_quantiles", "dd", {{"boundaries", "<f4", 2}}, "", 2},
      {"field_logarithms", "dd", {{"scale", "<f4", 1}, {"offset", "<f4", 1}}, "'limit': #"},
      {"category_rows", "d", {{"keys", "<i8", 1}, {"rows", "<i8", 1}}, "'single': #"},
      {"category_rows", "i", {{"keys", "<i8", 1}, {"rows", "<i8", 1}}, "'single': #", 1, true},
      {"category_rows", "", {{"keys", "<i8", 1}, {"rows", "<i8", 1}}, "'single': #", 0},
      {"learned_hash",
       "i",
       {{"keys", "<i8", 1}, {"rows", "<i8", 1}, {"hashed", "<i8", 1}},
       "'single': #",
       1,
       true},
      {"learned_hash",
       "d",
       {{"keys", "<i8", 1}, {"rows", "<i8", 1}, {"hashed", "<i8", 1}},
       "'single': #"},
      {"category_statistics",
       "d",
       {{"keys", "<i8", 1}, {"statistics", "<f4", 1}},
       "'crosses': [[#, #], [#]]"},
      {"field_embedding",
       "d",
       {{"table", "<f4", 2}},
       "'num_rows': [#], 'pooling': null, 'bag_combiner': 'sum'"},
      {"field_embedding",
       "d",
       {{"table", "|u1", 2}},
       "'num_rows': [#, #], 'pooling': 'mean', 'bag_combiner': 'sum', 'row_format': 'int4', "
       "'units': #"},
      {"checked_field_embedding",
       "d",
       {{"table", "<f4", 2}},
       "'num_rows': [#, #], 'pooling': null, 'bag_combiner': 'sum'"},
      {"hash_strings", "s", {}, "'kind': 'strings', 'keys': [[#, #]]"},
      {"hash_strings", "d", {}, "'kind': 'integers', 'keys': [[#, #], [#, #]]"},
      {"hash_ids", "i", {}, "'bits': #", 1, true},
      {"wrap_ids", "i", {}, "'num_rows': #", 1, true},
      {"dynamic_lookup", "i", {{"keys", "<i8", 1}, {"index", "<i4", 1}}, "'seed': #", 1, true},
      {"sparse_linear", "b", {{"table", "<f4", 2}, {"bias", "<f4", 1}}, ""},
      {"sparse_linear", "b", {{"table", "|u1", 2}}, "'row_format': 'int8', 'units': #"},
      {"sparse_linear", "b", {{"table", "|i1", 2}, {"scale", "<f4", 1}}, ""}};
  return *kinds;
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }

  // Mostly a size that a model may have.
  int64_t Size() {
    constexpr int64_t kLarge[] = {1 << 24,
                                  (1 << 24) + 1,
                                  int64_t{1} << 31,
                                  int64_t{1} << 48,
                                  int64_t{1} << 60,
                                  int64_t{1} << 62,
                                  std::numeric_limits<int64_t>::max()};
    if (Chance(6)) return kLarge[random_() % std::size(kLarge)];
    return static_cast<int64_t>(random_() % 5);
  }

  int64_t Integer() {
    if (Chance(8)) return std::numeric_limits<int64_t>::min();
    return Chance(4) ? -Size() : Size();
  }

  std::vector<int64_t> Dims() {
    std::vector<int64_t> dims(random_() % 4);
    for (int64_t& dim : dims) dim = Size();
    return dims;
  }

  std::string Attributes(std::string text) {
    for (size_t at; (at = text.find('#')) != std::string::npos;) {
      text.replace(at, 1, std::to_string(Integer()));
    }
    for (char& c : text) c = c == '\'' ? '"' : c;
    return text;
  }

  // A file whose items are small integers, or bytes of any value. One that is too large has no
  // items.
  std::string ArrayFile(const Array& array) {
    std::vector<int64_t> shape(array.rank);
    int64_t size = array.type[2] - '0';
    for (int64_t& dim : shape) {
      dim = Size();
      if (__builtin_mul_overflow(size, dim, &size)) size = 0;
    }
    std::string content;
    if (size <= 4096) content.resize(static_cast<size_t>(size));
    const bool any = Chance(4);
    for (size_t i = 0; i < content.size(); ++i) {
      const bool low = i % (array.type[2] - '0') == 0;
      if (any || low) content[i] = static_cast<char>(any ? random_() : random_() % 4);
    }
    const std::string header = Npy(array.type, shape, std::vector<char>());
    return header + content;
  }

 private:
  std::mt19937_64 random_;
};

inline std::string ListOf(const std::vector<int64_t>& dims) {
  std::string text;
  for (const int64_t dim : dims) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

// The text of a program, and its arrays.
inline Files MakeProgram(const Kind& kind, Generator* g) {
  Files files;
  std::string inputs, shapes, in, arrays, out;
  const auto add = [](std::string* list, const std::string& item) {
    *list += (list->empty() ? "" : ", ") + item;
  };
  for (const char* each = kind.inputs; *each != '\0'; ++each) {
    const std::string n = std::to_string(each - kind.inputs);
    if (*each == 'd' || *each == 's') {
      add(&inputs, "\"x" + n + "\": " + (*each == 'd' ? "\"dense\"" : "\"strings\""));
      add(&in, "\"x" + n + "\"");
      if (!g->Chance(3)) add(&shapes, "\"x" + n + "\": " + ListOf(g->Dims()));
      continue;
    }
    add(&inputs, "\"ids\": \"ids\", \"splits\": \"row_splits\"");
    if (*each == 'b') add(&inputs, "\"values\": \"values\"");
    add(&in, *each == 'b' ? "\"ids\", \"values\", \"splits\"" : "\"ids\"");
  }
  for (const Array& array : kind.arrays) {
    add(&arrays, std::string("\"") + array.name + "\": \"" + array.name + ".npy\"");
    files[std::string(array.name) + ".npy"] = g->ArrayFile(array);
  }
  for (int i = 0; i < kind.outputs; ++i) add(&out, "\"y" + std::to_string(i) + "\"");
  std::string steps = std::string("{\"op\": \"") + kind.op + "\", \"in\": [" + in +
                      "], \"out\": [" + out + "], \"arrays\": {" + arrays + "}, \"attributes\": {" +
                      g->Attributes(kind.attributes) + "}}";
  if (kind.ids) {
    steps +=
        ", {\"op\": \"sparse_linear\", \"in\": [\"y0\", null, \"splits\"], \"out\": [\"z\"], "
        "\"arrays\": {\"table\": \"t.npy\"}, \"attributes\": {}}";
    files["t.npy"] = g->ArrayFile({"t", "<f4", 2});
  }
  files["scorer.json"] = "{\"format\": 1, \"inputs\": {" + inputs + "}, \"shapes\": {" + shapes +
                         "}, \"steps\": [" + steps + "], \"output\": \"" +
                         (kind.ids ? "z" : "y" + std::to_string(kind.outputs > 1)) + "\"}";
  return files;
}

// Whether a scorer answers a request. The generator chooses sizes that are not known.
inline bool Answers(const Scorer& scorer, int64_t rows, Generator* g) {
  constexpr int64_t kMostItems = 1 << 16;
  const auto& inputs = scorer.features();
  std::vector<RequestArray> arrays(inputs.size());
  std::vector<std::vector<int64_t>> dims(inputs.size());
  std::vector<std::vector<int64_t>> numbers(inputs.size());  // of 8 bytes, for all types
  std::vector<int64_t> offsets(kMostItems + 1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    int64_t size = 2 * rows;
    dims[i] = inputs[i].shape_known ? inputs[i].dims : g->Dims();
    if (inputs[i].form == Form::kDense || inputs[i].form == Form::kStrings) {
      size = rows;
      for (const int64_t dim : dims[i]) {
        if (__builtin_mul_overflow(size, dim, &size)) size = 0;
      }
      if (size > kMostItems) size = 0;
      arrays[i].dims = &dims[i];
    }
    if (inputs[i].form == Form::kRowSplits) size = rows + 1;
    numbers[i].assign(static_cast<size_t>(size) + 1, 1);
    if (inputs[i].form == Form::kRowSplits) {
      for (int64_t r = 0; r <= rows; ++r) numbers[i][r] = 2 * r;
    }
    arrays[i].data = numbers[i].data();
    arrays[i].size = size;
    if (inputs[i].form == Form::kStrings) arrays[i].offsets = offsets.data();
  }
  Request request;
  request.arrays = arrays;
  request.rows = rows;
  std::vector<int64_t> shape;
  if (!scorer.OutputShape(request, &shape).ok()) return false;
  int64_t size = rows;
  for (const int64_t dim : shape) size *= dim;
  if (size > kMostItems) return false;
  std::vector<float> out(static_cast<size_t>(size));
  return scorer.Predict(request, Serial, out.data(), size).ok();
}

}  // namespace twml::step_programs

#endif  // TWML_TESTS_CC_STEP_PROGRAMS_H_
