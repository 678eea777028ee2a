#include "cc/core/max_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/cc/testing.h"

namespace twml {
namespace max_norm_test {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Values {
  std::vector<int64_t> ids;
  std::vector<float> values;
};

Values RandomValues(int64_t size, int64_t num_ids) {
  std::mt19937 random(7);
  Values batch;
  for (int64_t k = 0; k < size; ++k) {
    batch.ids.push_back(static_cast<int64_t>(random() % num_ids));
    batch.values.push_back(std::ldexp(static_cast<float>(random()) - 2e9f, -30));
  }
  return batch;
}

struct Result {
  std::vector<float> out, scale, max_abs;
  Status status;
};

Result Train(const Values& batch, std::vector<float> max_abs, const MaxNormOptions& options = {},
             const ParallelFor& parallel_for = Serial) {
  Result r{std::vector<float>(batch.ids.size()), std::vector<float>(batch.ids.size()),
           std::move(max_abs), Status()};
  r.status = MaxNormTraining<int64_t>({batch.ids, batch.values}, r.max_abs, nullptr, options,
                                      parallel_for, {r.out.data(), r.scale.data()});
  return r;
}

TEST(MaxNorm, EqualsTheReference) {
  for (const int64_t size : {0, 1, 3, 4, 5, 15, 16, 17, 1000}) {
    const Values batch = RandomValues(size, 5);
    const Result r = Train(batch, {0, 0, 1e9f, 0, 0.5f});
    ASSERT_TRUE(r.status.ok()) << r.status.message();
    std::vector<float> m = {0, 0, 1e9f, 0, 0.5f};
    for (int64_t k = 0; k < size; ++k) {
      m[batch.ids[k]] = std::max(m[batch.ids[k]], std::abs(batch.values[k]));
    }
    EXPECT_EQ(r.max_abs, m);
    for (int64_t k = 0; k < size; ++k) {
      const float divisor = std::max(m[batch.ids[k]], 1e-6f);
      EXPECT_EQ(r.out[k], batch.values[k] / divisor);
      EXPECT_EQ(r.scale[k], 1 / divisor);
    }
  }
}

TEST(MaxNorm, IsBitIdenticalForAnyNumberOfThreads) {
  const Values batch = RandomValues(20000, 3);
  const Result one = Train(batch, {0, 0, 0});
  for (const int64_t threads : {2, 3, 8}) {
    const Result many = Train(batch, {0, 0, 0}, {}, Sharded(threads));
    EXPECT_EQ(many.out, one.out);
    EXPECT_EQ(many.scale, one.scale);
    EXPECT_EQ(many.max_abs, one.max_abs);
  }
}

TEST(MaxNorm, AFailedCallDoesNotChangeTheMaxima) {
  const std::vector<float> before = {1, 2};
  for (const Values& batch :
       {Values{{0, 2}, {9, 9}}, Values{{0, -1}, {9, 9}}, Values{{0, 1}, {9, kNan}},
        Values{{0, 1}, {9, kInf}}, Values{{0, 1}, {9, -kInf}}, Values{{0, 1}, {9}}}) {
    const Result r = Train(batch, before);
    EXPECT_FALSE(r.status.ok());
    EXPECT_EQ(r.max_abs, before);
  }
  for (const float epsilon : {0.0f, -1.0f, kNan, kInf, 1e-40f}) {
    const Result r = Train({{0}, {9}}, before, {epsilon, NonFinitePolicy::kError});
    EXPECT_FALSE(r.status.ok());
    EXPECT_EQ(r.max_abs, before);
  }
}

TEST(MaxNorm, ReportsTheFirstInvalidValueForAnyNumberOfThreads) {
  Values batch = RandomValues(1000, 3);
  batch.values[500] = kNan;
  batch.values[999] = kInf;
  for (const int64_t threads : {1, 2, 8}) {
    EXPECT_EQ(Train(batch, {0, 0, 0}, {}, Sharded(threads)).status.message(),
              "values[500] = nan is not finite");
  }
}

TEST(MaxNorm, NonFiniteValuesCountAsZero) {
  const Result r =
      Train({{0, 0, 0, 0}, {kNan, kInf, -kInf, 2}}, {1}, {1e-6f, NonFinitePolicy::kZero});
  ASSERT_TRUE(r.status.ok());
  EXPECT_EQ(r.max_abs, (std::vector<float>{2}));
  EXPECT_EQ(r.out, (std::vector<float>{0, 0, 0, 1}));
  EXPECT_EQ(r.scale, (std::vector<float>{0, 0, 0, 0.5f}));
}

TEST(MaxNorm, InferenceClipsValuesAndTheirGradients) {
  const std::vector<int32_t> ids = {0, 0, 0, 0};
  const std::vector<float> values = {2, -2, 2.5f, -kInf}, max_abs = {2}, bias = {0.5f};
  const Span<const float> b = bias;
  std::vector<float> out(4), scale(4);
  ASSERT_TRUE(MaxNorm<int32_t>({ids, values}, max_abs, &b, {1e-6f, NonFinitePolicy::kZero}, Serial,
                               {out.data(), scale.data()})
                  .ok());
  EXPECT_EQ(out, (std::vector<float>{1.5f, -0.5f, 1.5f, 0.5f}));
  EXPECT_EQ(scale, (std::vector<float>{0.5f, 0.5f, 0, 0}));
}

TEST(MaxNorm, ABiasOfAnotherSizeIsRejected) {
  const std::vector<int64_t> ids;
  const std::vector<float> values, max_abs = {2}, bias = {1, 2};
  for (const Span<const float> b : {Span<const float>(bias), Span<const float>()}) {
    EXPECT_FALSE(MaxNorm<int64_t>({ids, values}, max_abs, &b, {}, Serial, {nullptr, nullptr}).ok());
  }
}

}  // namespace max_norm_test
}  // namespace twml
