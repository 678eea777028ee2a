#include "cc/core/sparse_linear.h"

#include <atomic>
#include <limits>

#include "cc/core/segment_sum.h"
#include "tests/cc/testing.h"

namespace twml {
namespace sparse_linear_test {

using Table = Matrix<const float>;

constexpr int64_t kInputDim = 50;
const std::vector<int64_t> kDims = {1,  2,  3,  4,   5,   7,   8,   9,  15,
                                    16, 17, 31, 128, 255, 256, 257, 400};
// Empty rows at both ends, and rows of one piece, of one more entry, and of several pieces.
const std::vector<int64_t> kLengths = {
    0, 5, kSegmentPiece, kSegmentPiece + 1, 0, 3 * kSegmentPiece + 7, 1, 0};

template <class Id>
std::vector<double> Reference(const Batch<Id>& batch, bool binary, const std::vector<float>& table,
                              int64_t dim) {
  std::vector<double> out(batch.num_rows() * dim);
  for (int64_t b = 0; b < batch.num_rows(); ++b) {
    for (int64_t k = batch.row_splits[b]; k < batch.row_splits[b + 1]; ++k) {
      for (int64_t d = 0; d < dim; ++d) {
        out[b * dim + d] += (binary ? 1.0 : batch.values[k]) * table[batch.ids[k] * dim + d];
      }
    }
  }
  return out;
}

// The gradient rows by id.
template <class Id>
std::map<int64_t, std::vector<double>> ReferenceGrad(const Batch<Id>& batch, bool binary,
                                                     const std::vector<float>& grad, int64_t dim) {
  std::map<int64_t, std::vector<double>> out;
  for (int64_t b = 0; b < batch.num_rows(); ++b) {
    for (int64_t k = batch.row_splits[b]; k < batch.row_splits[b + 1]; ++k) {
      auto& row = out[batch.ids[k]];
      row.resize(dim);
      for (int64_t d = 0; d < dim; ++d) {
        row[d] += (binary ? 1.0 : batch.values[k]) * grad[b * dim + d];
      }
    }
  }
  return out;
}

template <class Id>
class SparseLinearTest : public testing::Test {};
using Ids = testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(SparseLinearTest, Ids);

template <class Id>
struct Rows {
  std::vector<Id> ids;
  std::vector<float> rows;
  bool operator==(const Rows& other) const { return ids == other.ids && rows == other.rows; }

  AllocateRows<Id> Allocate(int64_t dim) {
    return [this, dim](int64_t number) -> RowsOutput<Id> {
      ids.resize(number);
      rows.resize(number * dim);
      return {ids.data(), rows.data()};
    };
  }
};

TYPED_TEST(SparseLinearTest, ForwardEqualsTheReferenceForAnyNumberOfThreads) {
  const auto batch = RandomBatch<TypeParam>(kLengths, kInputDim);
  for (const int64_t dim : kDims) {
    const auto table = RandomFloats(kInputDim * dim);
    for (const bool binary : {false, true}) {
      std::vector<float> serial(batch.num_rows() * dim, -1), out = serial;
      const Matrix<const float> weights{table.data(), kInputDim, dim};
      ASSERT_TRUE(SparseLinear(batch.csr(binary), weights, Serial, serial.data()).ok());
      ExpectNear(serial, Reference(batch, binary, table, dim));
      for (const int64_t shards : {2, 5}) {
        std::fill(out.begin(), out.end(), -1);
        ASSERT_TRUE(SparseLinear(batch.csr(binary), weights, Sharded(shards), out.data()).ok());
        EXPECT_EQ(out, serial) << "dim " << dim << " shards " << shards;
      }
    }
  }
}

TYPED_TEST(SparseLinearTest, WeightsGradEqualsTheReferenceForAnyNumberOfThreads) {
  const auto batch = RandomBatch<TypeParam>(kLengths, kInputDim);
  for (const int64_t dim : {1, 3, 16, 33, 400}) {
    const auto grad = RandomFloats(batch.num_rows() * dim);
    for (const bool binary : {false, true}) {
      const auto gradient = [&](const ParallelFor& parallel_for) {
        Rows<TypeParam> out;
        EXPECT_TRUE(SparseLinearWeightsGrad<TypeParam>(batch.csr(binary), kInputDim,
                                                       {grad.data(), batch.num_rows(), dim},
                                                       parallel_for, out.Allocate(dim))
                        .ok());
        return out;
      };
      const auto serial = gradient(Serial);
      int64_t u = 0;
      for (const auto& [id, row] : ReferenceGrad(batch, binary, grad, dim)) {
        ASSERT_EQ(serial.ids[u], id);
        const auto begin = serial.rows.begin() + u++ * dim;
        ExpectNear({begin, begin + dim}, row);
      }
      ASSERT_EQ(u, static_cast<int64_t>(serial.ids.size()));
      EXPECT_EQ(gradient(Sharded(3)), serial);
    }
  }
}

TYPED_TEST(SparseLinearTest, ValuesGradEqualsTheReference) {
  const auto batch = RandomBatch<TypeParam>({0, 4, 1, 0, 30}, kInputDim);
  for (const int64_t dim : kDims) {
    const auto table = RandomFloats(kInputDim * dim), grad = RandomFloats(5 * dim, 3);
    std::vector<double> want;
    for (int64_t b = 0; b < batch.num_rows(); ++b) {
      for (int64_t k = batch.row_splits[b]; k < batch.row_splits[b + 1]; ++k) {
        want.push_back(0);
        for (int64_t d = 0; d < dim; ++d) {
          want.back() += table[batch.ids[k] * dim + d] * grad[b * dim + d];
        }
      }
    }
    for (const int64_t shards : {1, 3}) {
      std::vector<float> out(want.size(), -1);
      ASSERT_TRUE(
          SparseLinearValuesGrad<TypeParam>(batch.csr(true), Table{table.data(), kInputDim, dim},
                                            {grad.data(), 5, dim}, Sharded(shards), out.data())
              .ok());
      ExpectNear(out, want);
    }
  }
}

TYPED_TEST(SparseLinearTest, AValuesGradDoesNotDependOnOtherEntries) {
  const auto batch = RandomBatch<TypeParam>({23}, kInputDim);
  for (const int64_t dim : kDims) {
    const auto table = RandomFloats(kInputDim * dim), grad = RandomFloats(dim, 3);
    const auto values_grad = [&](size_t from, size_t to) {
      const Batch<TypeParam> part{{batch.ids.begin() + from, batch.ids.begin() + to},
                                  {batch.values.begin() + from, batch.values.begin() + to},
                                  {0, static_cast<int64_t>(to - from)}};
      std::vector<float> out(to - from, -1);
      EXPECT_TRUE(SparseLinearValuesGrad<TypeParam>(part.csr(), Table{table.data(), kInputDim, dim},
                                                    {grad.data(), 1, dim}, Serial, out.data())
                      .ok());
      return out;
    };
    std::vector<float> alone;
    for (size_t k = 0; k < 23; ++k) alone.push_back(values_grad(k, k + 1)[0]);
    EXPECT_EQ(values_grad(0, 23), alone) << "dim " << dim;
  }
}

TYPED_TEST(SparseLinearTest, AnEmptyBatchIsValid) {
  const auto table = RandomFloats(kInputDim * 4);
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {0}, {0, 0}}) {
    const auto batch = RandomBatch<TypeParam>(lengths, kInputDim);
    std::vector<float> out(batch.num_rows() * 4, -1);
    ASSERT_TRUE(SparseLinear<TypeParam>(batch.csr(), Table{table.data(), kInputDim, 4}, Sharded(2),
                                        out.data())
                    .ok());
    EXPECT_EQ(out, std::vector<float>(out.size()));
    Rows<TypeParam> rows{{1}, {1}};
    ASSERT_TRUE(SparseLinearWeightsGrad<TypeParam>(batch.csr(), kInputDim,
                                                   {table.data(), batch.num_rows(), 4}, Sharded(2),
                                                   rows.Allocate(4))
                    .ok());
    EXPECT_TRUE(rows.ids.empty());
    // Without ids, a table without rows is valid.
    EXPECT_TRUE(
        SparseLinear<TypeParam>(batch.csr(), Table{nullptr, 0, 4}, Serial, out.data()).ok());
  }
}

TYPED_TEST(SparseLinearTest, ATableWithoutColumnsIsValid) {
  const auto batch = RandomBatch<TypeParam>({2, 1}, kInputDim);
  EXPECT_TRUE(
      SparseLinear<TypeParam>(batch.csr(), Table{nullptr, kInputDim, 0}, Sharded(2), nullptr).ok());
  std::vector<float> out(3, -1);
  EXPECT_TRUE(SparseLinearValuesGrad<TypeParam>(batch.csr(true), Table{nullptr, kInputDim, 0},
                                                {nullptr, 2, 0}, Sharded(2), out.data())
                  .ok());
  EXPECT_EQ(out, std::vector<float>(3));
}

TYPED_TEST(SparseLinearTest, InvalidInputAllocatesNothing) {
  auto batch = RandomBatch<TypeParam>({2, 1}, kInputDim);
  const auto grad = RandomFloats(3 * 4);
  const auto never = [](int64_t) -> RowsOutput<TypeParam> {
    ADD_FAILURE() << "allocated";
    return {nullptr, nullptr};
  };
  EXPECT_EQ(
      SparseLinearWeightsGrad<TypeParam>(batch.csr(), kInputDim, {grad.data(), 3, 4}, Serial, never)
          .message(),
      "grad must have one row for each of the batch's 2 rows, got 3");
  batch.ids[1] = kInputDim;
  EXPECT_EQ(
      SparseLinearWeightsGrad<TypeParam>(batch.csr(), kInputDim, {grad.data(), 2, 4}, Serial, never)
          .message(),
      "ids[1] = 50 is out of range [0, 50)");
  EXPECT_FALSE(SumDuplicates<TypeParam>(batch.ids, {grad.data(), 2, 4}, Serial, never).ok());
}

TYPED_TEST(SparseLinearTest, NothingIsWrittenIfAllocationFails) {
  const auto batch = RandomBatch<TypeParam>({2, 1}, kInputDim);
  const auto grad = RandomFloats(2 * 4);
  const auto no_memory = [](int64_t) -> RowsOutput<TypeParam> { return {nullptr, nullptr}; };
  EXPECT_TRUE(SparseLinearWeightsGrad<TypeParam>(batch.csr(), kInputDim, {grad.data(), 2, 4},
                                                 Serial, no_memory)
                  .ok());
}

TYPED_TEST(SparseLinearTest, DuplicatesAreSummedInOrder) {
  const std::vector<TypeParam> ids = {7, 2, 7, 7, 0};
  const std::vector<float> rows = {1e8f, 5, 1, -1e8f, 3};
  for (const int64_t shards : {1, 4}) {
    Rows<TypeParam> out;
    ASSERT_TRUE(
        SumDuplicates<TypeParam>(ids, {rows.data(), 5, 1}, Sharded(shards), out.Allocate(1)).ok());
    EXPECT_EQ(out.ids, (std::vector<TypeParam>{0, 2, 7}));
    EXPECT_EQ(out.rows, (std::vector<float>{3, 5, 0}));  // (1e8 + 1) - 1e8 in float32
  }
}

TEST(SumDuplicates, AcceptsTheLargestId) {
  constexpr int32_t kLast = std::numeric_limits<int32_t>::max();
  const std::vector<int32_t> ids = {kLast, 0, kLast};
  const std::vector<float> rows = {1, 2, 4};
  std::vector<int32_t> got_ids;
  std::vector<float> got_rows;
  const Status status = SumDuplicates<int32_t>(ids, {rows.data(), 3, 1}, Serial,
                                               [&](int64_t n) -> RowsOutput<int32_t> {
                                                 got_ids.resize(n);
                                                 got_rows.resize(n);
                                                 return {got_ids.data(), got_rows.data()};
                                               });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(got_ids, (std::vector<int32_t>{0, kLast}));
  EXPECT_EQ(got_rows, (std::vector<float>{2, 5}));
}

TEST(ForSegments, CoversEverySegmentOnceForAnyDistribution) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{0, 0, 0}, {1'000'000}, {0, 1, 1'000'000, 0, 2, 0}, {3, 3, 3, 3, 3}}) {
    std::vector<int64_t> splits{0};
    for (const int64_t length : lengths) splits.push_back(splits.back() + length);
    for (const int64_t shards : {1, 2, 3, 8, 17}) {
      std::vector<std::atomic<int>> seen(lengths.size());
      ForSegments(splits, 2, 1, Sharded(shards), [&](int64_t begin, int64_t end) {
        for (int64_t s = begin; s < end; ++s) ++seen[s];
      });
      for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
    }
  }
}

}  // namespace sparse_linear_test
}  // namespace twml
