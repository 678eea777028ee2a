// Each allocation of a call fails in turn: the call is done or has changed nothing, and a later one
// has the result that it would have had.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/core/dynamic_lookup.h"
#include "cc/core/reuse_distance.h"
#include "gtest/gtest.h"
#include "tests/cc/failing_allocations.h"
#include "tests/cc/loaded_scorer.h"
#include "tests/cc/testing.h"

namespace twml {
namespace out_of_memory_calls_test {

int64_t OpenFiles() {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

twml_ops_scorer_options OptionsOf(int32_t storage) {
  twml_ops_scorer_options options = {};
  options.size = sizeof(options);
  options.storage = storage;
  if (storage == TWML_OPS_TABLES_FILE) {
    options.cache_bytes = 1 << 16;
    options.sums_cache_bytes = 1 << 14;
    options.queue_depth = 4;
    options.least_bytes = 1;
  }
  return options;
}

class ScorerMemoryTest : public testing::TestWithParam<int32_t> {};

TEST_P(ScorerMemoryTest, AScorerIsLoadedReplacedAndUsedOrAsBefore) {
  const TemporaryFolder root;
  std::string folders[2];
  for (int i = 0; i < 2; ++i) {
    Files files = ManySteps(static_cast<float>(i));
    if (GetParam() == TWML_OPS_TABLES_FILE) {  // where no table has scales of its own
      std::string& program = files["scorer.json"];
      const std::string scales = R"(, "scale": "scale.npy")";
      program.erase(program.find(scales), scales.size());
      files["small.npy"] = FloatArray({16, 3}, 11);
    }
    folders[i] = Written(root, std::to_string(i), files);
  }
  const Entries entries(50);
  const twml_ops_request request = entries.request();
  std::vector<float> answers[2];
  for (int i = 0; i < 2; ++i) answers[i] = Loaded(folders[i]).Predict(request);
  ASSERT_NE(answers[0], answers[1]);

  const twml_ops_scorer_options options = OptionsOf(GetParam());
  char error[512];
  twml_ops_scorer* scorer = nullptr;
  int32_t code = 0;
  int64_t wrong = 0, files = OpenFiles();
  const int64_t loads = FailEachAllocation(
      [&] {
        error[0] = 0;
        code = twml_ops_scorer_open(folders[0].c_str(), &options, &scorer, error, sizeof(error));
      },
      [&](bool threw) {
        wrong += threw || (code == TWML_OPS_SCORER_OK) != (scorer != nullptr);
        wrong += (code == TWML_OPS_SCORER_OK) == (error[0] != 0);
        if (scorer == nullptr) wrong += OpenFiles() != files;
      });
  ASSERT_NE(scorer, nullptr) << error;
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(loads, 500);

  std::vector<float> out(answers[0].size());
  const auto predict = [&] {
    std::fill(out.begin(), out.end(), -1.0f);
    error[0] = 0;
    code = twml_ops_scorer_predict(scorer, &request, out.data(), static_cast<int64_t>(out.size()),
                                   error, sizeof(error));
  };
  const int64_t predictions = FailEachAllocation(predict, [&](bool threw) {
    wrong += threw || (code == TWML_OPS_SCORER_OK ? out != answers[0] : error[0] == 0);
    predict();
    wrong += code != TWML_OPS_SCORER_OK || out != answers[0];
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(predictions, 0);

  int served = 0;
  int64_t replacements = 0;
  for (const int next : {1, 0}) {
    replacements += FailEachAllocation(
        [&] { code = twml_ops_scorer_reload(scorer, folders[next].c_str(), error, sizeof(error)); },
        [&](bool threw) {
          if (code == TWML_OPS_SCORER_OK) served = next;
          wrong += threw;
          predict();
          wrong += code != TWML_OPS_SCORER_OK || out != answers[served];
        });
    EXPECT_EQ(served, next);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(replacements, 1000);
  twml_ops_scorer_free(scorer);
  EXPECT_EQ(OpenFiles(), files);
}

INSTANTIATE_TEST_SUITE_P(Storages, ScorerMemoryTest,
                         testing::Values(TWML_OPS_TABLES_MAPPED, TWML_OPS_TABLES_MEMORY,
                                         TWML_OPS_TABLES_FILE));

struct Rows {
  bool operator==(const Rows& other) const {
    return keys == other.keys && last_used == other.last_used && counts == other.counts &&
           index == other.index && sketch == other.sketch && header == other.header;
  }
  MutableDynamicRows View() { return {keys, last_used, counts, index, sketch, header}; }

  std::vector<int64_t> keys, last_used, counts;
  std::vector<int32_t> index;
  std::vector<uint8_t> sketch;
  std::vector<int64_t> header;
};

TEST(OutOfMemoryCalls, ALookupGivesRowsOrLeavesTheStateAsItWas) {
  constexpr int64_t kCapacity = 40;
  for (const Eviction eviction : {Eviction::kNone, Eviction::kLru, Eviction::kLfu}) {
    Rows rows = {Rows{}.keys, {}, {}, {}, {}, {}};
    rows.keys.assign(kCapacity, 0);
    rows.last_used = rows.counts = rows.keys;
    rows.index.assign(128, -1);
    rows.sketch.assign(4 * 64, 0);
    rows.header.assign(kDynamicHeaderSize, 0);
    Rows reference = rows;
    DynamicLookupOptions options;
    options.eviction = eviction;
    options.min_count = 2;
    std::mt19937_64 random(3);
    int64_t wrong = 0, failures = 0;
    for (int step = 0; step < 60; ++step) {
      std::vector<int64_t> ids(30), found(30), expected(30), reset, expected_reset;
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % 90);
      ASSERT_TRUE(AssignDynamicRows(ids, reference.View(), options, Serial, expected.data(),
                                    &expected_reset)
                      .ok());
      Rows before = rows;
      bool done = false;
      failures += FailEachAllocation(
          [&] {
            if (done) return;
            done = AssignDynamicRows(ids, rows.View(), options, Serial, found.data(), &reset).ok();
          },
          [&](bool threw) { wrong += threw && !(rows == before); });
      wrong += !(rows == reference) || found != expected || reset != expected_reset;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(failures, 100);
  }
}

TEST(OutOfMemoryCalls, AStackOfIdsGoesOnAfterAnError) {
  LruStack stack, reference;
  std::mt19937_64 random(7);
  int64_t wrong = 0, failures = 0;
  for (int step = 0; step < 3000; ++step) {
    const auto id = static_cast<int64_t>(random() % 500);
    const int64_t expected = reference.Access(id);
    int64_t found = -2;
    failures += FailEachAllocation([&] {
      if (found == -2) found = stack.Access(id);
    });
    wrong += found != expected || stack.size() != reference.size();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(failures, 10);
}

TEST(OutOfMemoryCalls, ReuseDistancesGoOnAfterAnError) {
  constexpr int64_t kIds = 400;
  ReuseDistances distances(ReuseDistances::kMinIds);
  std::mt19937_64 random(8);
  int64_t failures = 0, wrong = 0;
  for (int64_t step = 0; step < 3000; ++step) {
    const auto id = static_cast<int64_t>(random() % kIds);
    const int64_t before = distances.accesses();
    const auto add = [&] {
      if (distances.accesses() == before) distances.Add({&id, 1});
    };
    if (step % 3 == 0) failures += FailEachAllocation(add);
    add();
    wrong += distances.accesses() != before + 1;
  }
  const std::vector<int64_t> sizes = {1, 64, kIds, 2 * kIds};
  int64_t hits[4];
  distances.Hits(sizes, hits);
  for (int i = 0; i < 4; ++i) {
    wrong += hits[i] < (i == 0 ? 0 : hits[i - 1]) || hits[i] > distances.accesses();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(failures, 10);
  EXPECT_GT(distances.level(), 0);
}

}  // namespace out_of_memory_calls_test
}  // namespace twml
