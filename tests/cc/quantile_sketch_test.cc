#include "cc/core/quantile_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/sketch_arrays.h"
#include "tests/cc/testing.h"

namespace twml {
namespace quantile_sketch_test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::unique_ptr<QuantileSketch> Make(const QuantileSketchOptions& options = {}) {
  std::unique_ptr<QuantileSketch> sketch;
  EXPECT_TRUE(QuantileSketch::Make(options, &sketch).ok());
  return sketch;
}

struct State : SketchArrays {
  using SketchArrays::SketchArrays;
  bool operator==(const State& o) const {
    return config == o.config && feature_ids == o.feature_ids && totals == o.totals &&
           counters == o.counters && runs == o.runs && items == o.items;
  }
};

void Update(QuantileSketch* sketch, int64_t id, const std::vector<float>& values,
            const ParallelFor& parallel_for = Serial) {
  const std::vector<int64_t> ids(values.size(), id);
  const Status status = sketch->Update(ids, values, {}, parallel_for);
  ASSERT_TRUE(status.ok()) << status.message();
}

// The largest error of a rank over all distinct values of feature 0.
double WorstRankError(const QuantileSketch& sketch, std::vector<float> values) {
  std::sort(values.begin(), values.end());
  std::vector<float> distinct = values;
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const std::vector<int64_t> ids(distinct.size(), 0);
  std::vector<double> ranks(distinct.size());
  EXPECT_TRUE(sketch.Ranks(ids, distinct, Serial, ranks.data()).ok());
  double worst = 0;
  for (size_t i = 0; i < distinct.size(); ++i) {
    const auto exact = std::upper_bound(values.begin(), values.end(), distinct[i]) - values.begin();
    worst = std::max(worst, std::abs(ranks[i] - static_cast<double>(exact)));
  }
  return worst;
}

double Bound(const QuantileSketch& sketch) {
  const std::vector<int64_t> id = {0};
  double described[QuantileSketch::kNumStatistics];
  sketch.Describe(id, described);
  return described[2];
}

using Stream = std::function<float(int64_t i, int64_t n, std::mt19937_64&)>;
const std::map<std::string, Stream>& Streams() {
  static const auto* streams = new std::map<std::string, Stream>{
      {"sorted", [](int64_t i, int64_t, auto&) { return static_cast<float>(i); }},
      {"reversed", [](int64_t i, int64_t n, auto&) { return static_cast<float>(n - i); }},
      {"constant", [](int64_t, int64_t, auto&) { return 3.0f; }},
      {"uniform",
       [](int64_t, int64_t, auto& random) { return static_cast<float>(random() % 16777216); }},
      {"heavy-tailed",
       [](int64_t, int64_t, auto& random) {
         return std::exp(std::normal_distribution<float>(0, 4)(random));
       }},
      {"counts",
       [](int64_t, int64_t, auto& random) {
         return std::floor(std::exp(std::normal_distribution<float>(0, 3)(random)));
       }},
      // Each value lies between the two before it.
      {"zoom in",
       [](int64_t i, int64_t n, auto&) {
         return i % 2 ? static_cast<float>(2 * n - i) : static_cast<float>(i);
       }},
      // One value has almost all the weight.
      {"spiked",
       [](int64_t, int64_t, auto& random) {
         return random() % 16 ? 5.0f : static_cast<float>(random() % 16777216);
       }},
  };
  return *streams;
}

TEST(QuantileSketch, RanksStayWithinEpsilonOnEveryStream) {
  for (const double epsilon : {0.1, 0.01, 0.001}) {
    for (const auto& [name, stream] : Streams()) {
      for (const int64_t n : {100, 5'000, 200'000}) {
        std::mt19937_64 random(5);
        std::vector<float> values(n);
        for (int64_t i = 0; i < n; ++i) values[i] = stream(i, n, random);
        auto sketch = Make({epsilon, 0, false});
        Update(sketch.get(), 0, values);
        const double worst = WorstRankError(*sketch, values);
        EXPECT_LE(worst, epsilon * static_cast<double>(n)) << name << " " << n << " " << epsilon;
        EXPECT_LE(Bound(*sketch), epsilon * static_cast<double>(n)) << name << " " << n;
      }
    }
  }
}

TEST(QuantileSketch, TheErrorBoundStaysBelowEpsilonAlongAStream) {
  for (const double epsilon : {0.2, 0.01}) {
    for (const auto& [name, stream] : Streams()) {
      std::mt19937_64 random(6);
      auto sketch = Make({epsilon, 0, false});
      const int64_t n = 300'000;
      for (int64_t i = 0, size = 1; i < n; size = i / 16 + 1) {
        std::vector<float> values;
        for (int64_t k = 0; k < size && i < n; ++k) values.push_back(stream(i++, n, random));
        Update(sketch.get(), 0, values);
        ASSERT_LE(Bound(*sketch), epsilon * static_cast<double>(i)) << name << " " << i;
      }
    }
  }
}

TEST(QuantileSketch, FewDistinctValuesAreExactInALongStream) {
  std::mt19937_64 random(7);
  auto sketch = Make({0.1, 300, false});
  std::map<float, double> exact;
  std::vector<float> values(400'000);
  for (float& v : values) {
    v = std::floor(std::sqrt(static_cast<float>(random() % 90'000)));
    ++exact[v];
  }
  ASSERT_EQ(exact.size(), 300u);
  Update(sketch.get(), 0, values);
  std::vector<float> got;
  std::vector<double> weights;
  sketch->Values(0, &got, &weights);
  ASSERT_EQ(got.size(), exact.size());
  size_t i = 0;
  for (const auto& [value, weight] : exact) {
    EXPECT_EQ(got[i], value);
    EXPECT_EQ(weights[i++], weight);
  }
  EXPECT_EQ(Bound(*sketch), 0);
}

TEST(QuantileSketch, AConstantFeatureStaysSmall) {
  auto sketch = Make();
  Update(sketch.get(), 0, std::vector<float>(1'000'000, 2.5f));
  const std::vector<int64_t> id = {0};
  double described[QuantileSketch::kNumStatistics];
  sketch->Describe(id, described);
  EXPECT_EQ(described[0], 1e6);
  EXPECT_LE(described[3], 64);
}

Batch<int64_t> Mixed(int64_t n) {
  std::mt19937_64 random(8);
  Batch<int64_t> batch;
  for (int64_t k = 0; k < n; ++k) {
    batch.ids.push_back(static_cast<int64_t>(random() % 50) * (int64_t{1} << 57));
    const auto v = static_cast<float>(random() % (1 + (random() % 1000) * 1000));
    batch.values.push_back(random() % 20 ? v - 100 : kNan);
  }
  return batch;
}

std::vector<float> Weights(int64_t n, bool whole) {
  std::mt19937_64 random(9);
  std::vector<float> weights(n);
  for (float& w : weights) {
    w = whole ? static_cast<float>(random() % 5) : static_cast<float>(random() % 1000) * 0.013f;
  }
  return weights;
}

TEST(QuantileSketch, IsBitIdenticalForAnyThreadsAndBatches) {
  const Batch<int64_t> batch = Mixed(200'000);
  const int64_t n = static_cast<int64_t>(batch.ids.size());
  for (const bool weighted : {false, true}) {
    const std::vector<float> weights = weighted ? Weights(n, false) : std::vector<float>();
    const auto part = [&](int64_t begin, int64_t end) {
      return weighted ? Span<const float>(weights.data() + begin, end - begin)
                      : Span<const float>();
    };
    auto whole = Make({0.02, 64, weighted});
    ASSERT_TRUE(whole->Update(batch.ids, batch.values, part(0, n), Serial).ok());
    for (const int64_t threads : {1, 3}) {
      auto parts = Make({0.02, 64, weighted});
      for (int64_t begin = 0, size = 1; begin < n; begin += size, size = size * 3 / 2 + 1) {
        const int64_t end = std::min(n, begin + size);
        ASSERT_TRUE(parts
                        ->Update({batch.ids.data() + begin, end - begin},
                                 {batch.values.data() + begin, end - begin}, part(begin, end),
                                 Sharded(threads))
                        .ok());
      }
      EXPECT_EQ(State(*parts), State(*whole));
    }
  }
}

TEST(QuantileSketch, ASketchThatWasWrittenAndReadContinuesIdentically) {
  const Batch<int64_t> batch = Mixed(100'000);
  for (const bool weighted : {false, true}) {
    const std::vector<float> weights = Weights(100'000, false);
    const Span<const float> w = weighted ? Span<const float>(weights) : Span<const float>();
    auto sketch = Make({0.02, 64, weighted});
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(sketch->Update(batch.ids, batch.values, w, Serial).ok());
      std::unique_ptr<QuantileSketch> again;
      const State state(*sketch);
      const Status status = QuantileSketch::FromState(state.view(), Serial, &again);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(State(*again), state);
      ASSERT_TRUE(sketch->Update(batch.ids, batch.values, w, Serial).ok());
      ASSERT_TRUE(again->Update(batch.ids, batch.values, w, Serial).ok());
      ASSERT_EQ(State(*again), State(*sketch));
    }
  }
}

TEST(QuantileSketch, MergedPartsAreWithinEpsilon) {
  for (const auto& [name, stream] : Streams()) {
    for (const int64_t parts : {2, 5, 64}) {
      std::mt19937_64 random(10);
      const int64_t n = 200'000;
      std::vector<float> values(n);
      for (int64_t i = 0; i < n; ++i) values[i] = stream(i, n, random);
      auto merged = Make({0.01, 0, false});
      for (int64_t p = 0; p < parts; ++p) {
        auto part = Make({0.01, 0, false});
        Update(part.get(), 0,
               {values.begin() + n * p / parts, values.begin() + n * (p + 1) / parts});
        ASSERT_TRUE(merged->Merge(*part, Serial).ok());
      }
      EXPECT_LE(WorstRankError(*merged, values), 0.01 * static_cast<double>(n)) << name;
      EXPECT_LE(Bound(*merged), 0.01 * static_cast<double>(n)) << name << " " << parts;
    }
  }
}

TEST(QuantileSketch, IntegerWeightsEqualRepetitions) {
  const Batch<int64_t> batch = Mixed(3'000);
  const std::vector<float> weights = Weights(3'000, true);
  auto weighted = Make({0.1, 100'000, true}), repeated = Make({0.1, 100'000, false});
  ASSERT_TRUE(weighted->Update(batch.ids, batch.values, weights, Serial).ok());
  for (size_t k = 0; k < batch.ids.size(); ++k) {
    for (int i = 0; i < weights[k]; ++i) {
      ASSERT_TRUE(repeated->Update({&batch.ids[k], 1}, {&batch.values[k], 1}, {}, Serial).ok());
    }
  }
  for (const int64_t id : weighted->FeatureIds()) {
    std::vector<float> v1, v2;
    std::vector<double> w1, w2;
    weighted->Values(id, &v1, &w1);
    repeated->Values(id, &v2, &w2);
    EXPECT_EQ(v1, v2);
    EXPECT_EQ(w1, w2);
  }
}

TEST(QuantileSketch, FractionalWeightsKeepRanksWithinEpsilon) {
  std::mt19937_64 random(11);
  const int64_t n = 50'000;
  std::vector<std::pair<float, double>> entries(n);
  auto sketch = Make({0.01, 0, true});
  double total = 0;
  for (auto& [value, weight] : entries) {
    value = static_cast<float>(random() % 1'000'000);
    const float w = std::exp(std::normal_distribution<float>(0, 3)(random));
    weight = w;
    total += weight;
    const int64_t id = 0;
    ASSERT_TRUE(sketch->Update({&id, 1}, {&value, 1}, {&w, 1}, Serial).ok());
  }
  EXPECT_LE(Bound(*sketch), 0.01 * total);
  std::sort(entries.begin(), entries.end());
  double rank = 0;
  for (int64_t i = 0; i < n; ++i) {
    rank += entries[i].second;
    if (i + 1 < n && (i % 50 || entries[i + 1].first == entries[i].first)) continue;
    const int64_t id = 0;
    double got;
    ASSERT_TRUE(sketch->Ranks({&id, 1}, {&entries[i].first, 1}, Serial, &got).ok());
    ASSERT_NEAR(got, rank, 0.01 * total);
  }
}

TEST(QuantileSketch, AFailedCallChangesNothing) {
  auto sketch = Make({0.1, 16, true});
  const std::vector<int64_t> ids = {1, 2};
  const std::vector<float> two = {1, 2}, one = {1};
  ASSERT_TRUE(sketch->Update(ids, two, two, Serial).ok());
  const State before(*sketch);
  for (const float bad : {-1.0f, kNan, 3e9f}) {
    const std::vector<float> weights = {1, bad};
    EXPECT_FALSE(sketch->Update(ids, two, weights, Serial).ok());
  }
  EXPECT_FALSE(sketch->Update(ids, one, {}, Serial).ok());
  EXPECT_FALSE(sketch->Update(ids, two, one, Serial).ok());
  EXPECT_FALSE(sketch->Merge(*sketch, Serial).ok());
  EXPECT_FALSE(sketch->Merge(*Make({0.2, 16, true}), Serial).ok());
  EXPECT_FALSE(Make()->Update(ids, two, two, Serial).ok());
  EXPECT_EQ(State(*sketch), before);
  std::unique_ptr<QuantileSketch> none;
  for (const double epsilon : {0.0, -1.0, 0.6, static_cast<double>(kNan)}) {
    EXPECT_FALSE(QuantileSketch::Make({epsilon, 1, false}, &none).ok());
  }
  EXPECT_FALSE(QuantileSketch::Make({0.1, -1, false}, &none).ok());
}

// Each change makes the state invalid. It must be rejected without reading out of bounds.
TEST(QuantileSketch, InvalidStatesAreRejected) {
  auto sketch = Make({0.1, 4, true});
  const Batch<int64_t> batch = Mixed(3'000);
  ASSERT_TRUE(sketch->Update(batch.ids, batch.values, Weights(3'000, false), Serial).ok());
  const State good(*sketch);
  const std::vector<std::function<void(State*)>> changes = {
      [](State* s) { s->config.pop_back(); },
      [](State* s) { s->config[0] = 2; },
      [](State* s) { s->config[1] = kNan; },
      [](State* s) { s->config[2] = -1; },
      [](State* s) { s->config[2] = 1e300; },
      [](State* s) { s->feature_ids[1] = s->feature_ids[0]; },
      [](State* s) { s->feature_ids.pop_back(); },
      [](State* s) { s->totals[0] = kNan; },
      [](State* s) { s->totals[0] = -1; },
      [](State* s) { s->totals[2] = 1e300; },
      [](State* s) { s->totals[4] = -1; },
      [](State* s) { s->counters[0] = -1; },
      [](State* s) { s->counters[0] = INT64_MAX; },
      [](State* s) { s->counters[1] = INT64_MAX; },
      [](State* s) { s->counters[2] = -2; },
      [](State* s) { s->counters[2] += 1; },
      [](State* s) { s->counters[2] = INT64_MAX - 1; },
      [](State* s) { s->counters[3] = INT64_MAX; },
      [](State* s) { s->counters[3] += 1; },
      [](State* s) { s->runs[0] = 64; },
      [](State* s) { s->runs[0] = -1; },
      [](State* s) { s->runs[2] = s->runs[0]; },
      [](State* s) { s->runs[1] = 0; },
      [](State* s) { s->runs[1] = INT32_MAX; },
      [](State* s) { s->runs.push_back(40); },
      [](State* s) { s->items.pop_back(); },
      [](State* s) { s->items.push_back(1); },
      [](State* s) { s->items[0] = kNan; },
      [](State* s) { s->items.back() = -1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    State bad = good;
    changes[i](&bad);
    std::unique_ptr<QuantileSketch> made;
    EXPECT_FALSE(QuantileSketch::FromState(bad.view(), Serial, &made).ok()) << "change " << i;
    EXPECT_EQ(made, nullptr);
  }
}

// Replaces one number of a state, mostly by a number at an end of its range.
void Mutate(std::mt19937_64* random, State* state) {
  const auto put = [&](auto* numbers) {
    using T = typename std::decay_t<decltype(*numbers)>::value_type;
    using Limits = std::numeric_limits<T>;
    if (numbers->empty()) return;
    T& at = (*numbers)[(*random)() % numbers->size()];
    const T choices[] = {Limits::max(),
                         Limits::lowest(),
                         Limits::max() / 2,
                         Limits::max() / 4 + 1,
                         Limits::min(),
                         Limits::infinity(),
                         T(0),
                         T(1),
                         T(2),
                         T(63),
                         at};
    at = choices[(*random)() % std::size(choices)];
  };
  switch ((*random)() % 6) {
    case 0:
      return put(&state->config);
    case 1:
      return put(&state->feature_ids);
    case 2:
      return put(&state->totals);
    case 3:
      return put(&state->counters);
    case 4:
      return put(&state->runs);
    default:
      return put(&state->items);
  }
}

// A state that is accepted must be usable without undefined behavior, which the sanitizers check.
TEST(QuantileSketch, AnyStateIsRejectedOrUsable) {
  std::mt19937_64 random(11);
  int accepted = 0;
  for (const bool weighted : {false, true}) {
    auto sketch = Make({0.1, 4, weighted});
    const Batch<int64_t> batch = Mixed(600);
    const auto weights = weighted ? Weights(600, false) : std::vector<float>();
    ASSERT_TRUE(sketch->Update(batch.ids, batch.values, weights, Serial).ok());
    const State good(*sketch);
    for (int round = 0; round < 1500; ++round) {
      State state = good;
      for (int i = 0; i <= round % 2; ++i) Mutate(&random, &state);
      std::unique_ptr<QuantileSketch> made, other;
      if (!QuantileSketch::FromState(state.view(), Serial, &made).ok()) continue;
      ASSERT_TRUE(QuantileSketch::FromState(state.view(), Serial, &other).ok());
      ++accepted;
      for (int merges = 0; merges < 3; ++merges) {
        ASSERT_TRUE(made->Merge(*other, Serial).ok());
        ASSERT_TRUE(other->Merge(*made, Serial).ok());
      }
      const auto more = made->options().weighted ? Weights(600, false) : std::vector<float>();
      ASSERT_TRUE(made->Update(batch.ids, batch.values, more, Serial).ok());
      const std::vector<int64_t> ids = made->FeatureIds();
      const std::vector<int64_t> bins(ids.size(), 7);
      const std::vector<double> probabilities = {0, 0.3, 1};
      std::vector<float> quantiles(ids.size() * probabilities.size());
      ASSERT_TRUE(made->Quantiles(ids, probabilities, Serial, quantiles.data()).ok());
      QuantileBoundaries boundaries;
      ASSERT_TRUE(made->Boundaries(ids, bins, true, Serial, &boundaries).ok());
      const State again(*made);
      for (const int64_t count : again.counters) EXPECT_GE(count, 0);
    }
  }
  EXPECT_GT(accepted, 300);
}

TEST(QuantileSketch, AFeatureWithoutValuesHasNoQuantiles) {
  auto sketch = Make();
  Update(sketch.get(), 4, {kNan, kNan});
  const std::vector<int64_t> ids = {4, 5}, bins = {3, 3};
  const std::vector<double> probabilities = {0, 0.5, 1};
  std::vector<float> quantiles(6);
  ASSERT_TRUE(sketch->Quantiles(ids, probabilities, Serial, quantiles.data()).ok());
  for (const float q : quantiles) EXPECT_TRUE(std::isnan(q));
  QuantileBoundaries boundaries;
  ASSERT_TRUE(sketch->Boundaries(ids, bins, false, Serial, &boundaries).ok());
  EXPECT_EQ(boundaries.splits, (std::vector<int64_t>{0, 0, 0}));
  double described[2 * QuantileSketch::kNumStatistics];
  sketch->Describe(ids, described);
  EXPECT_EQ(described[1], 2);
  EXPECT_EQ(sketch->FeatureIds(), (std::vector<int64_t>{4}));
}

}  // namespace quantile_sketch_test
}  // namespace twml
