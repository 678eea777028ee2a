// Requests for the models of scorer_folders.h, through the C interface.
#ifndef TWML_TESTS_CC_LOADED_SCORER_H_
#define TWML_TESTS_CC_LOADED_SCORER_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/scorer_folders.h"
#include "twml_ops/include/twml_ops_scorer.h"

namespace twml {

// A request for ManySteps, in the order of its inputs.
struct Entries {
  explicit Entries(int64_t rows, uint64_t seed = 1) : num_rows(rows) {
    std::mt19937_64 random(seed);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t length = static_cast<int64_t>(random() % 6);
      for (int64_t k = 0; k < length; ++k) {
        ids.push_back(static_cast<int64_t>(random() % kIds));
        values.push_back(static_cast<float>(random() % 100) / 25 - 2);
      }
      splits.push_back(static_cast<int64_t>(ids.size()));
      for (int d = 0; d < 3; ++d) numbers.push_back(static_cast<float>(random() % 100) / 50 - 1);
    }
    const auto size = [](const auto& items) { return static_cast<int64_t>(items.size()); };
    arrays = {{ids.data(), size(ids), nullptr, 0},
              {values.data(), size(values), nullptr, 0},
              {splits.data(), size(splits), nullptr, 0},
              {numbers.data(), size(numbers), nullptr, 0}};
  }

  twml_ops_request request() const {
    twml_ops_request made = {};
    made.num_rows = num_rows;
    made.arrays = arrays.data();
    made.num_arrays = static_cast<int64_t>(arrays.size());
    return made;
  }

  int64_t num_rows;
  std::vector<int64_t> ids, splits{0};
  std::vector<float> values, numbers;
  std::vector<twml_ops_array> arrays;
};

// A scorer of the C interface.
class Loaded {
 public:
  explicit Loaded(const std::string& folder) {
    char text[512] = "";
    code = twml_ops_scorer_load(folder.c_str(), &scorer, text, sizeof(text));
    error = text;
  }
  ~Loaded() { twml_ops_scorer_free(scorer); }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  std::vector<float> Predict(const twml_ops_request& request) {
    std::vector<float> out(static_cast<size_t>(std::max<int64_t>(0, request.num_rows)), -1);
    char text[512] = "";
    code = twml_ops_scorer_predict(scorer, &request, out.data(), static_cast<int64_t>(out.size()),
                                   text, sizeof(text));
    error = text;
    return out;
  }

  twml_ops_scorer* scorer = nullptr;
  int32_t code = 0;
  std::string error;
};

inline std::string Written(const TemporaryFolder& root, const std::string& name,
                           const Files& files) {
  WriteFolder(root / name, files);
  return root / name;
}

}  // namespace twml

#endif  // TWML_TESTS_CC_LOADED_SCORER_H_
