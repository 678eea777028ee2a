// Folders of scorers for the tests, as twml_ops/export/scorer_files.py writes them.
#ifndef TWML_TESTS_CC_SCORER_FOLDERS_H_
#define TWML_TESTS_CC_SCORER_FOLDERS_H_

#include <stdlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace twml {

// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "scorer-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

template <class T>
std::string Npy(const char* type, const std::vector<int64_t>& shape, const std::vector<T>& items) {
  std::string header = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': (";
  for (const int64_t dim : shape) header += std::to_string(dim) + ",";
  header += "), }\n";
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 255);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  file.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T));
  return file;
}

inline std::string FloatArray(const std::vector<int64_t>& shape, uint64_t seed, float scale = 1) {
  std::mt19937_64 random(seed);
  int64_t size = 1;
  for (const int64_t dim : shape) size *= dim;
  std::vector<float> items;
  for (int64_t i = 0; i < size; ++i) {
    items.push_back(scale * (static_cast<float>(random() % 2000) / 1000 - 1));
  }
  return Npy("<f4", shape, items);
}

using Files = std::map<std::string, std::string>;  // content by name

inline void WriteFolder(const std::string& folder, const Files& files) {
  std::filesystem::create_directories(folder);
  for (const auto& [name, content] : files) WriteFile(folder + "/" + name, content);
}

constexpr int64_t kIds = 40;

// A model of most kinds of steps: entries are hashed, normalized, discretized and multiplied with
// tables, dense inputs go through layers, and the output is calibrated. `bias` is added to all
// logits.
inline Files ManySteps(float bias = 0) {
  Files files;
  files["scorer.json"] = R"({
 "format": 1,
 "inputs": {"ids": "ids", "values": "values", "splits": "row_splits", "numbers": "dense"},
 "shapes": {"numbers": [3]},
 "steps": [
  {"op": "max_norm", "in": ["ids", "values", "splits"], "out": ["n"],
   "arrays": {"max_abs": "max_abs.npy"}, "attributes": {"epsilon": 1e-6, "nonfinite": "zero"}},
  {"op": "online_standardize", "in": ["ids", "n", "splits"], "out": ["z"],
   "arrays": {"moments": "moments.npy"},
   "attributes": {"epsilon": 1e-6, "clip": 3.0, "nonfinite": "error"}},
  {"op": "hashing_discretize", "in": ["ids", "z", "splits"], "out": ["di", "dv", "ds"],
   "arrays": {"feature_ids": "features.npy", "boundaries": "boundaries.npy",
              "boundary_splits": "boundary_splits.npy"},
   "attributes": {"side": "left", "missing": "bucket", "unknown": "pass", "output_bits": 5,
                  "keep_inputs": false}},
  {"op": "hash_ids", "in": ["ids"], "out": ["h"], "arrays": {}, "attributes": {"bits": 4}},
  {"op": "sparse_linear", "in": ["di", "dv", "ds"], "out": ["a"],
   "arrays": {"table": "table.npy", "bias": "bias.npy"}, "attributes": {}},
  {"op": "sparse_linear", "in": ["h", null, "splits"], "out": ["b"],
   "arrays": {"table": "small.npy", "scale": "scale.npy"}, "attributes": {}},
  {"op": "dense", "in": ["numbers"], "out": ["c"], "arrays": {"kernel": "kernel.npy"},
   "attributes": {}},
  {"op": "activation", "in": ["c"], "out": ["d"], "arrays": {}, "attributes": {"name": "relu"}},
  {"op": "concatenate", "in": ["a", "b", "d"], "out": ["e"], "arrays": {},
   "attributes": {"axis": -1}},
  {"op": "reshape", "in": ["e"], "out": ["f"], "arrays": {}, "attributes": {"shape": [4, 3]}},
  {"op": "self_attention", "in": ["f", "f", "f"], "out": ["v"], "arrays": {},
   "attributes": {"num_heads": 3}},
  {"op": "layer_normalization", "in": ["v"], "out": ["w"], "arrays": {},
   "attributes": {"epsilon": 1e-3}},
  {"op": "patches", "in": ["w"], "out": ["p"], "arrays": {}, "attributes": {"size": 3}},
  {"op": "dense", "in": ["p"], "out": ["q"], "arrays": {"kernel": "filter.npy"}, "attributes": {}},
  {"op": "reshape", "in": ["q"], "out": ["r"], "arrays": {}, "attributes": {"shape": [4, 3]}},
  {"op": "combine_vectors", "in": ["r"], "out": ["s"], "arrays": {"kernel": "fields.npy"},
   "attributes": {}},
  {"op": "dot_interaction", "in": ["s"], "out": ["g"], "arrays": {}, "attributes": {}},
  {"op": "affine", "in": ["g"], "out": ["i"],
   "arrays": {"factor": "factor.npy", "offset": "offset.npy"}, "attributes": {}},
  {"op": "dense", "in": ["i"], "out": ["j"],
   "arrays": {"kernel": "last.npy", "bias": "last_bias.npy"}, "attributes": {}},
  {"op": "activation", "in": ["j"], "out": ["k"], "arrays": {}, "attributes": {"name": "sigmoid"}},
  {"op": "logit", "in": ["k"], "out": ["t"], "arrays": {}, "attributes": {}},
  {"op": "activation", "in": ["t"], "out": ["u"], "arrays": {}, "attributes": {"name": "sigmoid"}},
  {"op": "platt_scaling", "in": ["u"], "out": ["l"],
   "arrays": {"slopes": "one.npy", "intercepts": "last_bias.npy", "base_rates": "one.npy"},
   "attributes": {"from_logits": false, "nan": "base_rate"}},
  {"op": "isotonic_calibration", "in": ["l"], "out": ["m"],
   "arrays": {"corner_scores": "corners.npy", "corner_values": "corners.npy",
              "base_rates": "one.npy"},
   "attributes": {"nan": "propagate"}}
 ],
 "output": "m"
}
)";
  files["max_abs.npy"] = FloatArray({kIds}, 1);
  files["moments.npy"] = Npy("<f8", {kIds, 3}, std::vector<double>(kIds * 3, 0.5));
  files["features.npy"] = Npy("<i8", {3}, std::vector<int64_t>{1, 5, 9});
  files["boundaries.npy"] = Npy("<f4", {4}, std::vector<float>{-0.5f, 0.0f, 0.25f, 0.75f});
  files["boundary_splits.npy"] = Npy("<i8", {4}, std::vector<int64_t>{0, 2, 2, 4});
  files["table.npy"] = FloatArray({32, 4}, 2);
  files["bias.npy"] = FloatArray({4}, 3);
  files["small.npy"] = Npy("|i1", {16, 3}, std::vector<int8_t>(48, 7));
  files["scale.npy"] = FloatArray({16}, 4);
  files["kernel.npy"] = FloatArray({3, 5}, 5);
  files["filter.npy"] = FloatArray({9, 1}, 9);
  files["fields.npy"] = FloatArray({4, 4}, 10);
  files["factor.npy"] = FloatArray({6}, 6);
  files["offset.npy"] = FloatArray({6}, 7);
  files["last.npy"] = FloatArray({6, 1}, 8);
  files["last_bias.npy"] = Npy("<f4", {1}, std::vector<float>{bias});
  files["one.npy"] = Npy("<f4", {1}, std::vector<float>{1});
  files["corners.npy"] = Npy("<f4", {1, 3}, std::vector<float>{0.0f, 0.5f, 1.0f});
  return files;
}

}  // namespace twml

#endif  // TWML_TESTS_CC_SCORER_FOLDERS_H_
