// Scores two rows with the model of docs/serving.md on two threads. CMakeLists.txt builds it.
#include <twml_ops_scorer.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  char error[256] = "";
  twml_ops_scorer* loaded = nullptr;
  if (twml_ops_scorer_load(argv[1], &loaded, error, sizeof(error)) != TWML_OPS_SCORER_OK) {
    std::fprintf(stderr, "%s\n", error);
    return 1;
  }
  const std::unique_ptr<twml_ops_scorer, decltype(&twml_ops_scorer_free)> scorer(
      loaded, twml_ops_scorer_free);
  const std::unique_ptr<twml_ops_threads, decltype(&twml_ops_threads_free)> threads(
      twml_ops_threads_new(2), twml_ops_threads_free);

  const std::vector<int64_t> ids = {3, 14, 15}, row_splits = {0, 2, 3};
  const std::vector<float> values = {1, 2, 3};
  const twml_ops_array arrays[] = {{ids.data(), 3, nullptr, 0},
                                   {values.data(), 3, nullptr, 0},
                                   {row_splits.data(), 3, nullptr, 0}};
  twml_ops_request request = {};
  request.num_rows = 2;
  request.arrays = arrays;
  request.num_arrays = 3;
  request.threads = threads.get();
  std::vector<float> out(2 * twml_ops_scorer_output_width(scorer.get()));
  if (twml_ops_scorer_predict(scorer.get(), &request, out.data(), static_cast<int64_t>(out.size()),
                              error, sizeof(error)) != TWML_OPS_SCORER_OK) {
    std::fprintf(stderr, "%s\n", error);
    return 1;
  }
  for (const float p : out) std::printf("%.9g\n", p);
  return 0;
}
