#include "cc/core/average_rows.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/testing.h"

namespace twml {
namespace average_rows_test {

constexpr int64_t kRows = 40;

struct Table {
  explicit Table(int64_t dim) : dim(dim), weights(RandomFloats(kRows * dim)) {
    average.assign(kRows * dim, 7.0f);  // ignored where the step is 0
    steps.assign(kRows, 0);
  }

  template <class Id>
  Status Advance(const std::vector<Id>& ids, int64_t step, double momentum, int64_t threads) {
    return AverageRows<Id, float>(ids, {weights.data(), kRows, dim},
                                  {{average.data(), kRows, dim}, steps.data()}, step,
                                  std::log(momentum), Sharded(threads));
  }

  int64_t dim;
  std::vector<float> weights, average;
  std::vector<int64_t> steps;
};

// Trains with random updates of repeated ids, and compares all averages with those that are updated
// in each step.
template <class Id>
void ExpectAveragesOfEachStep(int64_t dim, double momentum, int64_t threads) {
  Table table(dim);
  std::vector<double> want(table.weights.begin(), table.weights.end());
  std::mt19937_64 random(3);
  for (int64_t step = 1; step <= 60; ++step) {
    std::vector<Id> ids(step % 7 == 0 ? 0 : 12);
    for (Id& id : ids) id = static_cast<Id>(random() % 10 * (random() % 4));
    ASSERT_TRUE(table.Advance(ids, step, momentum, threads).ok());
    for (const Id id : ids) {
      for (int64_t i = 0; i < dim; ++i) {
        table.weights[id * dim + i] += static_cast<float>(random() % 100) / 100 - 0.5f;
      }
    }
    for (size_t i = 0; i < want.size(); ++i) {
      want[i] = momentum * want[i] + (1 - momentum) * table.weights[i];
    }
  }
  std::vector<int64_t> all(kRows);
  for (int64_t i = 0; i < kRows; ++i) all[i] = i;
  ASSERT_TRUE(table.Advance(all, 61, momentum, threads).ok());
  ExpectNear(table.average, want, 1e-6);
  EXPECT_EQ(table.steps, std::vector<int64_t>(kRows, 61));
}

TEST(AverageRows, EqualsTheAverageOfAllSteps) {
  for (const int64_t dim : {0, 1, 3, 16, 17}) {
    for (const double momentum : {0.0, 0.5, 0.99, 1.0}) {
      ExpectAveragesOfEachStep<int32_t>(dim, momentum, 1);
      ExpectAveragesOfEachStep<int64_t>(dim, momentum, 3);
    }
  }
}

TEST(AverageRows, StepsThatAreDoneChangeNothing) {
  Table table(4);
  const std::vector<int64_t> ids = {5, 5, 1};
  for (const int64_t step : {0, -3}) {
    ASSERT_TRUE(table.Advance(ids, step, 0.9, 2).ok());
    EXPECT_EQ(table.steps, std::vector<int64_t>(kRows, 0));
    EXPECT_EQ(table.average, std::vector<float>(kRows * 4, 7.0f));
  }
  ASSERT_TRUE(table.Advance(ids, 8, 0.9, 2).ok());
  const std::vector<float> before = table.average;
  for (float& w : table.weights) w += 1;
  ASSERT_TRUE(table.Advance(ids, 8, 0.9, 2).ok());
  ASSERT_TRUE(table.Advance(ids, 2, 0.9, 2).ok());
  EXPECT_EQ(table.average, before);
  EXPECT_EQ(table.steps[5], 8);
}

TEST(AverageRows, OneThreadAdvancesARowThatManyHave) {
  Table one(64), many(64);
  std::vector<int64_t> ids(5000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i % 3);
  for (int64_t step = 1; step < 30; ++step) {
    ASSERT_TRUE(one.Advance(ids, step, 0.9, 1).ok());
    ASSERT_TRUE(many.Advance(ids, step, 0.9, 8).ok());
    for (Table* table : {&one, &many}) {
      for (float& w : table->weights) w = w * 0.5f + 0.1f;
    }
  }
  EXPECT_EQ(one.average, many.average);
}

TEST(AverageRows, Bfloat16RowsAreWidened) {
  const std::vector<Bfloat16> weights = {{0x3fc0}, {0xc000}};  // 1.5, -2
  std::vector<float> average(2, 0);
  std::vector<int64_t> steps = {0, 3};
  const std::vector<int32_t> ids = {0, 1};
  ASSERT_TRUE((AverageRows<int32_t, Bfloat16>(ids, {weights.data(), 2, 1},
                                              {{average.data(), 2, 1}, steps.data()}, 5,
                                              std::log(0.5), Serial))
                  .ok());
  EXPECT_EQ(average, (std::vector<float>{1.5f, -1.5f}));
}

TEST(AverageRows, BadInputIsRefused) {
  Table table(2);
  EXPECT_EQ(table.Advance<int64_t>({3, kRows}, 1, 0.9, 1).message(),
            "ids[1] = 40 is out of range [0, 40)");
  EXPECT_EQ(table.Advance<int64_t>({3}, 1, 1.5, 1).message(),
            "log_momentum must not be positive, got 0.405465");
  EXPECT_FALSE(table.Advance<int64_t>({3}, 1, std::nan(""), 1).ok());
  EXPECT_EQ(table.steps, std::vector<int64_t>(kRows, 0));
}

}  // namespace average_rows_test
}  // namespace twml
