// Compares every update rule with its formula in double precision, for ApplyRows and for the fused
// backward pass.
#include "cc/core/update_rules.h"

#include <cmath>

#include "cc/core/segment_sum.h"
#include "cc/core/simd_dispatch.h"
#include "cc/core/sparse_linear.h"
#include "tests/cc/testing.h"

namespace twml {
namespace update_rules_test {

constexpr int64_t kRows = 30;

// learning_rate, decay, and the hyperparameters of the rule.
const std::map<UpdateRule, std::vector<float>> kHyper = {
    {UpdateRule::kSgd, {0.1f, 0.01f}},
    {UpdateRule::kMomentum, {0.1f, 0.01f, 0.9f, 0}},
    {UpdateRule::kAdagrad, {0.1f, 0.01f, 1e-6f}},
    {UpdateRule::kRowWiseAdagrad, {0.1f, 0.01f, 1e-6f}},
    {UpdateRule::kLazyAdam, {0.1f, 0.01f, 0.9f, 0.99f, 1e-6f}},
    {UpdateRule::kFtrl, {0.1f, 0.01f, -0.5f, 0.02f, 0.03f, 0.01f}},
};

// A table with an update rule, weights and slots.
struct Table {
  UpdateRule rule;
  std::vector<float> hyper;
  int64_t dim;
  std::vector<float> weights;
  std::vector<float> slots[kMaxSlots];

  Table(UpdateRule r, int64_t d, std::vector<float> h = {})
      : rule(r),
        hyper(h.empty() ? kHyper.at(r) : std::move(h)),
        dim(d),
        weights(RandomFloats(kRows * d, 7)) {
    for (int s = 0; s < info().num_slots; ++s) {
      slots[s] = RandomFloats(kRows * slot_dim(), 8 + s);
      for (float& x : slots[s]) x = std::fabs(x) + 0.1f;
    }
  }
  const UpdateRuleInfo& info() const { return kUpdateRules[static_cast<int>(rule)]; }
  int64_t slot_dim() const { return info().rowwise_slots ? 1 : dim; }
  OptimizedTable<float> optimized_table() {
    OptimizedTable<float> t;
    t.weights = {weights.data(), kRows, dim};
    for (int s = 0; s < info().num_slots; ++s) t.slots[s] = slots[s].data();
    t.rule = rule;
    t.hyper = hyper.data();
    return t;
  }
  bool operator==(const Table& o) const {
    return weights == o.weights && slots[0] == o.slots[0] && slots[1] == o.slots[1];
  }
};

template <class Id>
Status BackwardApply(const Csr<Id>& batch, Matrix<const float> grad,
                     const OptimizedTable<float>& table, const ParallelFor& parallel_for) {
  GroupedBatch<Id> grouped;
  TWML_RETURN_IF_ERROR(GroupBatch<Id>(batch, table.weights.rows, nullptr, parallel_for, &grouped));
  return SparseLinearBackwardApply(grouped, grad, table, parallel_for);
}

struct Row {
  std::vector<double> w, a, b;  // weights and the two slots
};

Row RowOf(const Table& t, int64_t id) {
  const auto cut = [id](const std::vector<float>& v, int64_t dim) {
    if (v.empty()) return std::vector<double>();
    return std::vector<double>(v.begin() + id * dim, v.begin() + (id + 1) * dim);
  };
  return {cut(t.weights, t.dim), cut(t.slots[0], t.slot_dim()), cut(t.slots[1], t.slot_dim())};
}

// The formulas of update_rules.h, element by element.
Row ExpectedRow(const Table& t, Row row, const std::vector<double>& g) {
  const auto& h = t.hyper;
  const double lr = h[0];
  double mean = 0;
  for (const double x : g) mean += x * x / g.size();
  if (t.rule == UpdateRule::kRowWiseAdagrad) row.a[0] += mean;
  for (size_t i = 0; i < g.size(); ++i) {
    double& w = row.w[i];
    w -= w * h[1];
    switch (t.rule) {
      case UpdateRule::kSgd:
        w -= lr * g[i];
        break;
      case UpdateRule::kMomentum:
        row.a[i] = h[2] * row.a[i] - lr * g[i];
        w += h[3] != 0 ? h[2] * row.a[i] - lr * g[i] : row.a[i];
        break;
      case UpdateRule::kAdagrad:
        row.a[i] += g[i] * g[i];
        w -= lr * g[i] / std::sqrt(row.a[i] + h[2]);
        break;
      case UpdateRule::kRowWiseAdagrad:
        w -= lr * g[i] / std::sqrt(row.a[0] + h[2]);
        break;
      case UpdateRule::kLazyAdam:
        row.a[i] += (1 - h[2]) * (g[i] - row.a[i]);
        row.b[i] += (1 - h[3]) * (g[i] * g[i] - row.b[i]);
        w -= lr * row.a[i] / (std::sqrt(row.b[i]) + h[4]);
        break;
      case UpdateRule::kFtrl: {
        const double sum = row.a[i] + g[i] * g[i];
        row.b[i] +=
            g[i] + 2 * h[5] * w - (std::pow(sum, -h[2]) - std::pow(row.a[i], -h[2])) / lr * w;
        const double clipped = std::clamp<double>(row.b[i], -h[3], h[3]);
        w = (clipped - row.b[i]) / (std::pow(sum, -h[2]) / lr + 2 * h[4]);
        row.a[i] = sum;
      }
    }
  }
  return row;
}

void ExpectRow(const Row& got, const Row& want) {
  const auto near = [](const std::vector<double>& g, const std::vector<double>& w) {
    ASSERT_EQ(g.size(), w.size());
    for (size_t i = 0; i < g.size(); ++i) ASSERT_NEAR(g[i], w[i], 1e-5 * (1 + std::fabs(w[i])));
  };
  near(got.w, want.w);
  near(got.a, want.a);
  near(got.b, want.b);
}

class UpdateRuleTest
    : public testing::TestWithParam<std::pair<const UpdateRule, std::vector<float>>> {
 protected:
  UpdateRule rule() const { return GetParam().first; }
};

TEST_P(UpdateRuleTest, EqualsItsFormulaAndDoesNotChangeOtherRows) {
  for (const int64_t dim : {1, 3, 4, 7, 8, 9, 16, 17, 32, 64, 100, 128}) {
    Table table(rule(), dim, GetParam().second);
    const Table before = table;
    const std::vector<int64_t> ids = {0, 4, 5, 29};
    const auto rows = RandomFloats(4 * dim);
    ASSERT_TRUE(
        ApplyRows<int64_t>(ids, {rows.data(), 4, dim}, table.optimized_table(), Sharded(3)).ok());
    for (int64_t id = 0, u = 0; id < kRows; ++id) {
      Row want = RowOf(before, id);
      if (u < 4 && ids[u] == id) {
        want = ExpectedRow(before, want, {rows.begin() + u * dim, rows.begin() + (u + 1) * dim});
        ++u;
        ExpectRow(RowOf(table, id), want);
      } else {
        EXPECT_EQ(RowOf(table, id).w, want.w);
        EXPECT_EQ(RowOf(table, id).a, want.a);
        EXPECT_EQ(RowOf(table, id).b, want.b);
      }
    }
  }
}

TEST_P(UpdateRuleTest, RepeatedIdsAreSummedFirst) {
  constexpr int64_t kDim = 5;
  Table table(rule(), kDim, GetParam().second), summed = table;
  const std::vector<int64_t> ids = {9, 2, 9, 9};
  const auto rows = RandomFloats(4 * kDim);
  std::vector<float> sums(2 * kDim);
  for (int64_t d = 0; d < kDim; ++d) {
    sums[d] = rows[kDim + d];
    sums[kDim + d] = rows[d] + rows[2 * kDim + d] + rows[3 * kDim + d];
  }
  ASSERT_TRUE(
      ApplyRows<int64_t>(ids, {rows.data(), 4, kDim}, table.optimized_table(), Sharded(2)).ok());
  const std::vector<int64_t> unique = {2, 9};
  ASSERT_TRUE(
      ApplyRows<int64_t>(unique, {sums.data(), 2, kDim}, summed.optimized_table(), Serial).ok());
  EXPECT_EQ(table, summed);
}

TEST_P(UpdateRuleTest, FusedAndSeparateUpdatesAreBitIdentical) {
  const auto batch = RandomBatch<int32_t>({0, 5, 40, 3 * kSegmentPiece, 0, 700}, kRows);
  // Powers of two have specialized kernels.
  for (const int64_t dim : {1, 4, 6, 8, 16, 32, 33, 64, 128, 256}) {
    const auto grad = RandomFloats(batch.num_rows() * dim);
    const Matrix<const float> matrix{grad.data(), batch.num_rows(), dim};
    for (const bool binary : {false, true}) {
      Table by_rows(rule(), dim, GetParam().second);
      std::vector<int32_t> ids;
      std::vector<float> rows;
      ASSERT_TRUE(SparseLinearWeightsGrad<int32_t>(batch.csr(binary), kRows, matrix, Serial,
                                                   [&](int64_t n) -> RowsOutput<int32_t> {
                                                     ids.resize(n);
                                                     rows.resize(n * dim);
                                                     return {ids.data(), rows.data()};
                                                   })
                      .ok());
      ASSERT_TRUE(ApplyRows<int32_t>(ids, {rows.data(), static_cast<int64_t>(ids.size()), dim},
                                     by_rows.optimized_table(), Serial)
                      .ok());
      for (const int64_t shards : {1, 2, 5}) {
        Table fused(rule(), dim, GetParam().second);
        ASSERT_TRUE(
            BackwardApply(batch.csr(binary), matrix, fused.optimized_table(), Sharded(shards))
                .ok());
        EXPECT_EQ(fused, by_rows) << "dim " << dim << " shards " << shards;
      }
    }
  }
}

// What x86-64 CPUs with AVX2 and with AVX-512 compute. Others that round a product and a sum once,
// as the kernels of aarch64, compute the same bits. Not of row-wise Adagrad, whose mean over a row
// has as many partial sums as a vector has lanes.
const std::map<UpdateRule, uint64_t> kDigests = {{UpdateRule::kSgd, 1068897980037647973u},
                                                 {UpdateRule::kMomentum, 11269106261413466861u},
                                                 {UpdateRule::kAdagrad, 40070023222178529u},
                                                 {UpdateRule::kLazyAdam, 16098101699086691975u},
                                                 {UpdateRule::kFtrl, 5285295410017343476u}};

TEST_P(UpdateRuleTest, ProductsAndUpdatesHaveTheSameBitsOnEveryCpuWithFusedMultiplyAdd) {
  const auto expected = kDigests.find(rule());
  if (expected == kDigests.end() || GetParam().second != kHyper.at(rule())) {
    GTEST_SKIP() << "there is no digest";
  }
#if defined(__x86_64__)
  if (std::string(GetRowKernels().level) == kSimdLevels[0]) GTEST_SKIP() << "it rounds twice";
#endif
  const auto batch = RandomBatch<int64_t>({0, 5, 40, 3 * kSegmentPiece, 0, 700}, kRows);
  uint64_t digest = kEmptyDigest;
  for (const int64_t dim : {1, 4, 7, 16, 33, 64}) {
    const auto grad = RandomFloats(batch.num_rows() * dim);
    const Matrix<const float> matrix{grad.data(), batch.num_rows(), dim};
    Table table(rule(), dim, kHyper.at(rule()));
    std::vector<float> sums(batch.num_rows() * dim);
    for (const bool binary : {false, true}) {
      ASSERT_TRUE(
          BackwardApply(batch.csr(binary), matrix, table.optimized_table(), Sharded(2)).ok());
      const Matrix<const float> weights{table.weights.data(), kRows, dim};
      ASSERT_TRUE(SparseLinear(batch.csr(binary), weights, Serial, sums.data()).ok());
      digest = Digest(sums, digest);
    }
    digest = Digest(table.slots[1], Digest(table.slots[0], Digest(table.weights, digest)));
  }
  EXPECT_EQ(digest, expected->second);
}

TEST_P(UpdateRuleTest, InvalidInputDoesNotChangeTheTable) {
  constexpr int64_t kDim = 4;
  Table table(rule(), kDim, GetParam().second);
  const Table before = table;
  const auto rows = RandomFloats(3 * 5);
  const std::vector<int64_t> bad = {0, kRows}, good = {0, 1};
  const auto apply = [&](const std::vector<int64_t>& ids, int64_t n, int64_t dim) {
    return ApplyRows<int64_t>(ids, {rows.data(), n, dim}, table.optimized_table(), Serial)
        .message();
  };
  EXPECT_EQ(apply(bad, 2, kDim), "ids[1] = 30 is out of range [0, 30)");
  EXPECT_EQ(apply(good, 3, kDim), "rows must have one row for each of the 2 ids, got 3");
  EXPECT_EQ(apply(good, 2, 5), "the gradient's rows must be as wide as the table's, 4, got 5");
  auto batch = RandomBatch<int64_t>({2, 1}, kRows);
  const auto fused = [&](int64_t n, int64_t dim) {
    return BackwardApply<int64_t>(batch.csr(), {rows.data(), n, dim}, table.optimized_table(),
                                  Serial)
        .message();
  };
  EXPECT_EQ(fused(3, kDim), "grad must have one row for each of the batch's 2 rows, got 3");
  EXPECT_EQ(fused(2, 5), "the gradient's rows must be as wide as the table's, 4, got 5");
  batch.ids[2] = -1;
  EXPECT_EQ(fused(2, kDim), "ids[2] = -1 is out of range [0, 30)");
  EXPECT_EQ(table, before);
}

TEST_P(UpdateRuleTest, OneGroupingServesSeveralTables) {
  const auto batch = RandomBatch<int64_t>({3, 9, 0, 50}, kRows);
  GroupedBatch<int64_t> grouped;
  ASSERT_TRUE(GroupBatch<int64_t>(batch.csr(), kRows, nullptr, Sharded(3), &grouped).ok());
  for (const int64_t dim : {1, 16, 33}) {
    Table shared(rule(), dim, GetParam().second), alone = shared;
    const auto grad = RandomFloats(batch.num_rows() * dim);
    const Matrix<const float> matrix = {grad.data(), batch.num_rows(), dim};
    ASSERT_TRUE(
        SparseLinearBackwardApply(grouped, matrix, shared.optimized_table(), Sharded(2)).ok());
    ASSERT_TRUE(BackwardApply(batch.csr(), matrix, alone.optimized_table(), Serial).ok());
    EXPECT_EQ(shared, alone);
  }
}

TEST_P(UpdateRuleTest, GroupsOfAnotherIdSpaceDoNotChangeTheTable) {
  Table table(rule(), 4, GetParam().second);
  const Table before = table;
  auto batch = RandomBatch<int64_t>({2, 1}, kRows);
  batch.ids[1] = kRows;
  const std::vector<float> grad(8, 1);
  GroupedBatch<int64_t> grouped;
  ASSERT_TRUE(GroupBatch<int64_t>(batch.csr(), kRows + 1, nullptr, Serial, &grouped).ok());
  EXPECT_EQ(SparseLinearBackwardApply(grouped, {grad.data(), 2, 4}, table.optimized_table(), Serial)
                .message(),
            "groups must have ids in [0, 30), got 30");
  EXPECT_EQ(table, before);
}

TEST_P(UpdateRuleTest, AnEmptyUpdateIsValid) {
  Table table(rule(), 4, GetParam().second);
  const Table before = table;
  EXPECT_TRUE(ApplyRows<int64_t>({}, {nullptr, 0, 4}, table.optimized_table(), Sharded(2)).ok());
  const auto batch = RandomBatch<int64_t>({0, 0}, kRows);
  const std::vector<float> grad(8, 1);
  EXPECT_TRUE(
      BackwardApply<int64_t>(batch.csr(), {grad.data(), 2, 4}, table.optimized_table(), Sharded(2))
          .ok());
  EXPECT_EQ(table, before);
}

INSTANTIATE_TEST_SUITE_P(Rules, UpdateRuleTest, testing::ValuesIn(kHyper.begin(), kHyper.end()));
INSTANTIATE_TEST_SUITE_P(
    Variants, UpdateRuleTest,
    testing::Values(std::pair<const UpdateRule, std::vector<float>>{UpdateRule::kMomentum,
                                                                    {0.1f, 0, 0.9f, 1}},
                    std::pair<const UpdateRule, std::vector<float>>{UpdateRule::kFtrl,
                                                                    {0.1f, 0, -0.7f, 0, 0, 0}},
                    std::pair<const UpdateRule, std::vector<float>>{UpdateRule::kFtrl,
                                                                    {0.1f, 0, 0, 0.5f, 0, 0}}));

// Learning rate schedules may end at 0, and pass rates whose inverse is not a finite float.
TEST_P(UpdateRuleTest, ALearningRateOfZeroDoesNotChangeTheWeights) {
  const auto batch = RandomBatch<int64_t>({3, 9, 0, 50}, kRows);
  for (const int64_t dim : {1, 7, 16, 33, 64}) {
    for (const float rate : {0.0f, 1e-45f, 1e-39f}) {
      auto hyper = GetParam().second;
      hyper[0] = rate;
      hyper[1] = 0;
      Table fused(rule(), dim, hyper), by_rows = fused;
      if (rule() == UpdateRule::kMomentum) fused.slots[0].assign(fused.slots[0].size(), 0);
      const Table before = fused;
      by_rows = fused;
      const auto grad = RandomFloats(batch.num_rows() * dim);
      ASSERT_TRUE(BackwardApply<int64_t>(batch.csr(), {grad.data(), batch.num_rows(), dim},
                                         fused.optimized_table(), Serial)
                      .ok());
      for (size_t i = 0; i < before.weights.size(); ++i) {
        // A tiny rate may change a weight of 0 by a tiny amount.
        ASSERT_NEAR(fused.weights[i], before.weights[i], rate == 0 ? 0 : 1e-30);
      }
      for (const auto& slot : fused.slots) {
        for (const float x : slot) EXPECT_TRUE(std::isfinite(x));
      }
      if (rule() == UpdateRule::kFtrl) {
        EXPECT_EQ(fused, before);
        // The next step is not affected.
        for (Table* table : {&fused, &by_rows}) {
          table->hyper[0] = 0.1f;
          ASSERT_TRUE(BackwardApply<int64_t>(batch.csr(), {grad.data(), batch.num_rows(), dim},
                                             table->optimized_table(), Serial)
                          .ok());
        }
        EXPECT_EQ(fused, by_rows);
      }
    }
  }
}

TEST_P(UpdateRuleTest, DecayAppliesAlsoAtALearningRateOfZero) {
  auto hyper = GetParam().second;
  hyper[0] = 0;
  hyper[1] = 0.5f;
  Table table(rule(), 8, hyper);
  if (rule() == UpdateRule::kMomentum) table.slots[0].assign(table.slots[0].size(), 0);
  const Table before = table;
  const auto rows = RandomFloats(8);
  const std::vector<int64_t> ids = {3};
  ASSERT_TRUE(ApplyRows<int64_t>(ids, {rows.data(), 1, 8}, table.optimized_table(), Serial).ok());
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(table.weights[3 * 8 + i], before.weights[3 * 8 + i] / 2);
  }
}

TEST_P(UpdateRuleTest, ATableWithoutColumnsDoesNotChange) {
  Table table(rule(), 0, GetParam().second);
  const Table before = table;
  const std::vector<int64_t> ids = {3, 9, 3};
  EXPECT_TRUE(ApplyRows<int64_t>(ids, {nullptr, 3, 0}, table.optimized_table(), Serial).ok());
  const auto batch = RandomBatch<int64_t>({2, 3}, kRows);
  EXPECT_TRUE(
      BackwardApply<int64_t>(batch.csr(), {nullptr, 2, 0}, table.optimized_table(), Serial).ok());
  EXPECT_EQ(table, before);
}

TEST(UpdateRules, AreFoundByName) {
  for (int i = 0; i < kNumUpdateRules; ++i) EXPECT_EQ(FindUpdateRule(kUpdateRules[i].name), i);
  EXPECT_EQ(FindUpdateRule("adam"), -1);
  EXPECT_EQ(FindUpdateRule(""), -1);
}

TEST(Ftrl, AnElementWithoutAGradientDoesNotChange) {
  Table table(UpdateRule::kFtrl, 8, {0.1f, 0, -0.5f, 0, 0, 0});
  for (auto& slot : table.slots) slot.assign(slot.size(), 0);  // initial accumulator 0
  const Table before = table;
  std::vector<float> row(8, 0);
  row[5] = 1;
  const std::vector<int64_t> ids = {3};
  ASSERT_TRUE(ApplyRows<int64_t>(ids, {row.data(), 1, 8}, table.optimized_table(), Serial).ok());
  for (int64_t i = 0; i < 8; ++i) {
    const float w = table.weights[3 * 8 + i];
    EXPECT_TRUE(std::isfinite(w));
    if (i != 5) {
      EXPECT_EQ(w, before.weights[3 * 8 + i]);
    }
  }
}

TEST(Ftrl, L1MakesExactZeros) {
  Table table(UpdateRule::kFtrl, 8, {0.1f, 0, -0.5f, 100, 0, 0});
  std::fill(table.weights.begin(), table.weights.end(), 0.0f);
  const auto rows = RandomFloats(8);
  const std::vector<int64_t> ids = {3};
  ASSERT_TRUE(ApplyRows<int64_t>(ids, {rows.data(), 1, 8}, table.optimized_table(), Serial).ok());
  EXPECT_EQ(table.weights, std::vector<float>(table.weights.size()));
}

}  // namespace update_rules_test
}  // namespace twml
