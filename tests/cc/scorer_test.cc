// The scorer and its C interface: folders and requests that are damaged end in an error, and the
// answers are the same for any number of threads and while the model is replaced.
#include "cc/core/scorer/scorer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "cc/core/crc32.h"
#include "cc/core/scorer/json.h"
#include "tests/cc/loaded_scorer.h"
#include "tests/cc/testing.h"

namespace twml {
namespace scorer_test {

TEST(Crc32, EqualsZlib) {
  EXPECT_EQ(Crc32("123456789", 9), 0xCBF43926u);
  EXPECT_EQ(Crc32(nullptr, 0), 0u);
  const std::string text = "the checksum of parts, one after the other";
  for (size_t n = 0; n <= text.size(); ++n) {
    const uint32_t first = Crc32(text.data(), n);
    EXPECT_EQ(Crc32(text.data() + n, text.size() - n, first), Crc32(text.data(), text.size()));
  }
}

TEST(ScorerInterface, EveryNumberOfThreadsGivesTheSameBits) {
  const TemporaryFolder root;
  Loaded model(Written(root, "1", ManySteps()));
  ASSERT_EQ(model.code, TWML_OPS_SCORER_OK) << model.error;
  EXPECT_EQ(twml_ops_scorer_output_width(model.scorer), 1);
  for (const int64_t rows : {0, 1, 31, 32, 33, 5000}) {
    const Entries entries(rows);
    twml_ops_request request = entries.request();
    const std::vector<float> expected = model.Predict(request);
    ASSERT_EQ(model.code, TWML_OPS_SCORER_OK) << model.error;
    for (const float y : expected) EXPECT_TRUE(y >= 0 && y <= 1) << y;
    for (const int32_t threads : {-1, 0, 1, 2, 3, 8}) {
      twml_ops_threads* const pool = twml_ops_threads_new(threads);
      ASSERT_NE(pool, nullptr);
      request.threads = pool;
      EXPECT_EQ(model.Predict(request), expected) << rows << " rows, " << threads << " threads";
      twml_ops_threads_free(pool);
    }
    request.threads = nullptr;
    request.parallel_for = [](void*, int64_t total, int64_t, twml_ops_body body, void* context) {
      std::vector<std::thread> threads;
      for (int64_t i = 0; i < 3; ++i) {
        threads.emplace_back(body, context, total * i / 3, total * (i + 1) / 3);
      }
      for (auto& thread : threads) thread.join();
    };
    EXPECT_EQ(model.Predict(request), expected);
  }
}

TEST(ScorerInterface, AnAnswerDuringAReplacementIsOfOneVersion) {
  const TemporaryFolder root;
  const std::string folders[] = {Written(root, "1", ManySteps(-1)),
                                 Written(root, "2", ManySteps(1))};
  Loaded model(folders[0]);
  const Entries entries(40);
  std::vector<float> answers[2];
  for (int i = 0; i < 2; ++i) answers[i] = Loaded(folders[i]).Predict(entries.request());
  ASSERT_NE(answers[0], answers[1]);
  twml_ops_threads* const pool = twml_ops_threads_new(2);
  std::atomic<bool> ends{false};
  std::atomic<int> wrong{0}, refused{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&, i] {
      twml_ops_request request = entries.request();
      if (i % 2 == 1) request.threads = pool;
      std::vector<float> out(40);
      do {
        if (twml_ops_scorer_predict(model.scorer, &request, out.data(), 40, nullptr, 0) != 0) {
          ++refused;
        }
        if (out != answers[0] && out != answers[1]) ++wrong;
      } while (!ends);
    });
  }
  Files damaged = ManySteps();
  damaged["table.npy"].resize(200);
  Written(root, "damaged", damaged);
  char error[256];
  for (int i = 0; i < 60; ++i) {
    const std::string& folder = folders[i % 2];
    EXPECT_EQ(twml_ops_scorer_reload(model.scorer, folder.c_str(), error, sizeof(error)), 0);
    EXPECT_NE(
        twml_ops_scorer_reload(model.scorer, (root / "damaged").c_str(), error, sizeof(error)), 0);
  }
  ends = true;
  for (auto& caller : callers) caller.join();
  twml_ops_threads_free(pool);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(model.Predict(entries.request()), answers[1]);
}

TEST(ScorerInterface, WrongArgumentsAreErrors) {
  const TemporaryFolder root;
  const std::string folder = Written(root, "1", ManySteps());
  char error[64];
  twml_ops_scorer* scorer = nullptr;
  EXPECT_EQ(twml_ops_scorer_load(nullptr, &scorer, error, sizeof(error)), TWML_OPS_SCORER_INVALID);
  EXPECT_EQ(twml_ops_scorer_load(folder.c_str(), nullptr, error, sizeof(error)),
            TWML_OPS_SCORER_INVALID);
  EXPECT_EQ(twml_ops_scorer_load("/nowhere", &scorer, nullptr, 0), TWML_OPS_SCORER_INVALID);
  EXPECT_EQ(twml_ops_scorer_load("/nowhere", &scorer, error, 1), TWML_OPS_SCORER_INVALID);
  EXPECT_EQ(error[0], '\0');
  EXPECT_EQ(scorer, nullptr);
  EXPECT_EQ(twml_ops_scorer_reload(nullptr, folder.c_str(), error, sizeof(error)),
            TWML_OPS_SCORER_INVALID);
  twml_ops_input input;
  EXPECT_EQ(twml_ops_scorer_num_inputs(nullptr, TWML_OPS_FEATURES), -1);
  EXPECT_EQ(twml_ops_scorer_input(nullptr, TWML_OPS_FEATURES, 0, &input), TWML_OPS_SCORER_INVALID);
  EXPECT_EQ(twml_ops_scorer_output_width(nullptr), -1);
  twml_ops_scorer_free(nullptr);
  twml_ops_threads_free(nullptr);

  Loaded model(folder);
  EXPECT_EQ(twml_ops_scorer_num_inputs(model.scorer, TWML_OPS_COLUMNS), 0);
  EXPECT_EQ(twml_ops_scorer_num_inputs(model.scorer, 7), -1);
  for (const int64_t i : {int64_t{-1}, int64_t{4}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(twml_ops_scorer_input(model.scorer, TWML_OPS_FEATURES, i, &input),
              TWML_OPS_SCORER_INVALID);
  }
  EXPECT_EQ(twml_ops_scorer_input(model.scorer, TWML_OPS_FEATURES, 0, nullptr),
            TWML_OPS_SCORER_INVALID);
  const Entries entries(3);
  const twml_ops_request good = entries.request();
  float out[3];
  EXPECT_NE(twml_ops_scorer_predict(nullptr, &good, out, 3, error, sizeof(error)), 0);
  EXPECT_NE(twml_ops_scorer_predict(model.scorer, nullptr, out, 3, error, sizeof(error)), 0);
  EXPECT_NE(twml_ops_scorer_predict(model.scorer, &good, nullptr, 3, error, sizeof(error)), 0);
  for (const int64_t size : {-1, 0, 2, 4}) {
    EXPECT_NE(twml_ops_scorer_predict(model.scorer, &good, out, size, error, sizeof(error)), 0);
  }
  const auto refused = [&](const char* what, const auto& change) {
    twml_ops_request request = good;
    change(request);
    EXPECT_NE(twml_ops_scorer_predict(model.scorer, &request, out, 3, error, sizeof(error)), 0)
        << what;
  };
  refused("no arrays", [](auto& r) { r.arrays = nullptr; });
  refused("a number of arrays", [](auto& r) { r.num_arrays = 3; });
  refused("more arrays than there are", [](auto& r) { r.num_arrays = int64_t{1} << 40; });
  refused("a negative number of arrays", [](auto& r) { r.num_arrays = -1; });
  refused("an unknown set", [](auto& r) { r.set = 2; });
  refused("columns of a model without", [](auto& r) { r.set = TWML_OPS_COLUMNS; });
  refused("a negative number of rows", [](auto& r) { r.num_rows = -3; });
  refused("another number of rows", [](auto& r) { r.num_rows = 4; });
  EXPECT_EQ(twml_ops_scorer_predict(model.scorer, &good, out, 3, nullptr, 0), 0);
}

TEST(ScorerFolders, AnUnknownVersionOfTheFormatSaysSo) {
  const TemporaryFolder root;
  Files files = ManySteps();
  std::string& text = files["scorer.json"];
  text.replace(text.find("\"format\": 1"), 11, "\"format\": 4");
  const Loaded model(Written(root, "1", files));
  EXPECT_EQ(model.code, TWML_OPS_SCORER_INVALID);
  EXPECT_NE(model.error.find("has the format 4, this version reads 1 to 3"), std::string::npos)
      << model.error;
}

// A changed byte of a program with a checksum, or of an array that has one, is found.
TEST(ScorerFolders, ChecksumsFindEveryChange) {
  const TemporaryFolder root;
  Files files = ManySteps();
  std::string checksums = "\"checksums\": {";
  for (const auto& [name, content] : files) {
    if (name == "scorer.json") continue;
    const size_t header = 10 + static_cast<uint8_t>(content[8]);
    const size_t part = std::min<size_t>(content.size(), 8192);
    const uint32_t begin = Crc32(content.data(), part);
    const uint32_t ends = Crc32(content.data() + content.size() - part, part, begin);
    const uint32_t items = Crc32(content.data() + header, content.size() - header);
    checksums += (checksums.back() == '{' ? "\"" : ", \"") + name + "\": [" +
                 std::to_string(content.size()) + ", " + std::to_string(ends) + ", " +
                 std::to_string(items) + "]";
  }
  std::string& text = files["scorer.json"];
  const std::string rest = " " + checksums + "}," + text.substr(1);
  text = "{\"crc32\": " + std::to_string(Crc32(rest.data(), rest.size())) + "," + rest;
  const std::string folder = Written(root, "1", files);
  ASSERT_EQ(Loaded(folder).code, TWML_OPS_SCORER_OK) << Loaded(folder).error;
  std::mt19937_64 random(1);
  for (const char* name : {"scorer.json", "table.npy", "last.npy", "features.npy"}) {
    for (int i = 0; i < 50; ++i) {
      std::string content = files[name];
      const size_t first = name == std::string("scorer.json") ? 20 : 0;
      content[first + random() % (content.size() - first)] ^= static_cast<char>(1 + random() % 255);
      WriteFile(folder + "/" + name, content);
      EXPECT_EQ(Loaded(folder).code, TWML_OPS_SCORER_INVALID) << name;
    }
    WriteFile(folder + "/" + name, files[name]);
  }
}

// Changes a text as a disk or a person might: bytes, cuts, repetitions, and values of JSON.
std::string Mutated(std::string text, std::mt19937_64& random) {
  static const char* const kValues[] = {
      "null", "true", "-1", "0",   "1e99",  "9223372036854775807", "[]", "{}",
      "\"\"", "NaN",  "[[", "1.5", "\"e\"", "\"numbers\"",         "..", "\"table.npy\""};
  const auto below = [&random](size_t n) { return n == 0 ? 0 : random() % n; };
  const size_t at = below(text.size()), n = below(8);
  switch (random() % 7) {
    case 0:
      for (size_t i = 0; i <= n && !text.empty(); ++i) {
        text[below(text.size())] = static_cast<char>(random());
      }
      break;
    case 1:
      text.resize(at);
      break;
    case 2:
      text.erase(at, n);
      break;
    case 3:
      text.insert(at, text.substr(below(text.size()), 40));
      break;
    case 4:
      if (!text.empty()) text[at] ^= static_cast<char>(1 << random() % 8);
      break;
    case 5: {  // another value of a member
      const size_t colon = text.find(": ", at);
      if (colon == std::string::npos) break;
      const size_t end = text.find_first_of(",}]\n", colon);
      if (end != std::string::npos)
        text.replace(colon + 2, end - colon - 2, kValues[random() % 16]);
      break;
    }
    default: {  // another number
      const size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) {
        text.replace(digit, 1, std::to_string(random() >> random() % 64));
      }
    }
  }
  return text;
}

TEST(ScorerFolders, DamagedFoldersEndInAnErrorOrAnAnswer) {
  const TemporaryFolder root;
  const Files files = ManySteps();
  const std::string folder = Written(root, "1", files);
  const Entries entries(7);
  std::mt19937_64 random(20261124);
  int loaded = 0;
  for (int i = 0; i < 4000; ++i) {
    // The program half of the time, as it has the most to read.
    auto changed = files.find("scorer.json");
    if (random() % 2 == 0) {
      changed = files.begin();
      std::advance(changed, random() % files.size());
    }
    std::string content = changed->second;
    for (uint64_t k = 0; k <= random() % 3; ++k) content = Mutated(std::move(content), random);
    WriteFile(folder + "/" + changed->first, content);
    Loaded model(folder);
    if (model.code == TWML_OPS_SCORER_OK) {
      ++loaded;
      const int64_t width = twml_ops_scorer_output_width(model.scorer);
      std::vector<float> out(static_cast<size_t>(std::max<int64_t>(1, width) * 7));
      const twml_ops_request request = entries.request();
      char error[256];
      twml_ops_scorer_predict(model.scorer, &request, out.data(), static_cast<int64_t>(out.size()),
                              error, sizeof(error));
    } else {
      EXPECT_NE(model.error, "");
    }
    WriteFile(folder + "/" + changed->first, changed->second);
  }
  EXPECT_GT(loaded, 100);  // some changes keep a program valid, which is then computed
  EXPECT_EQ(Loaded(folder).code, TWML_OPS_SCORER_OK);
}

TEST(ScorerFolders, TextsThatAreNoJsonAreErrors) {
  std::mt19937_64 random(3);
  const std::string text = ManySteps().at("scorer.json");
  for (int i = 0; i < 20000; ++i) {
    const size_t begin = random() % text.size();
    std::string piece = text.substr(begin, random() % 300);
    if (i % 2 == 0) piece = Mutated(std::move(piece), random);
    scorer::Json json;
    if (!scorer::Json::Parse(piece, &json).ok()) continue;
    EXPECT_LE(json.items().size(), piece.size());
  }
}

// Arrays of other sizes, offsets that do not ascend, ids that do not exist, and missing data.
TEST(ScorerInterface, DamagedRequestsEndInAnErrorOrAnAnswer) {
  const TemporaryFolder root;
  Loaded model(Written(root, "1", ManySteps()));
  std::mt19937_64 random(5);
  int answered = 0;
  for (int i = 0; i < 5000; ++i) {
    Entries entries(1 + static_cast<int64_t>(random() % 40), random());
    for (uint64_t k = 0; k <= random() % 2; ++k) {
      twml_ops_array& array = entries.arrays[random() % 4];
      const int64_t any = static_cast<int64_t>(random() >> random() % 64);
      switch (random() % 6) {
        case 0:
          array.size = -any;
          break;
        case 1:
          array.size = array.size == 0 ? 0 : array.size - 1;  // no array has more items than memory
          break;
        case 2:
          array.data = nullptr;
          break;
        case 3:
          entries.splits[random() % entries.splits.size()] = any;
          break;
        case 4:
          if (!entries.ids.empty()) entries.ids[random() % entries.ids.size()] = -any;
          break;
        default:
          if (!entries.values.empty()) {
            entries.values[random() % entries.values.size()] = std::nanf("");
          }
      }
    }
    twml_ops_request request = entries.request();
    const Entries other(1, random());
    if (random() % 4 == 0) request.user = other.arrays.data();
    model.Predict(request);
    if (model.code == TWML_OPS_SCORER_OK) ++answered;
  }
  EXPECT_GT(answered, 100);
  const Entries good(5);
  model.Predict(good.request());
  EXPECT_EQ(model.code, TWML_OPS_SCORER_OK) << model.error;
}

}  // namespace scorer_test
}  // namespace twml
