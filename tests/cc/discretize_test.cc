#include "cc/core/discretize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/testing.h"

namespace twml {
namespace discretize_test {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Entries {
  std::vector<int64_t> ids;
  std::vector<float> values;
  std::vector<int64_t> row_splits;
  bool operator==(const Entries& o) const {
    return ids == o.ids && values == o.values && row_splits == o.row_splits;
  }
};

struct Fitted {
  std::vector<int64_t> features;
  std::vector<float> boundaries;
  std::vector<int64_t> splits;
  Status Make(Buckets* buckets) const {
    return Buckets::Make(features, boundaries, splits, Serial, buckets);
  }
};

Status Discretize(const Entries& in, const Buckets& buckets, const DiscretizeOptions& options,
                  bool hashing, int64_t bits, const ParallelFor& parallel_for, Entries* out) {
  out->row_splits.assign(in.row_splits.size(), -1);
  const Csr<int64_t> batch{in.ids, in.values, in.row_splits, false};
  const AllocateEntries allocate = [out](int64_t number) -> EntriesOutput {
    out->ids.resize(number);
    out->values.resize(number);
    return {out->ids.data(), out->values.data()};
  };
  const auto run = hashing ? HashingDiscretize<int64_t> : PercentileDiscretize<int64_t>;
  return run(batch, buckets, options, bits, parallel_for, allocate, out->row_splits.data());
}

TEST(Discretize, EqualsStdBoundsForEveryNumberOfBoundaries) {
  std::mt19937 random(3);
  for (int n = 0; n <= 70; ++n) {
    Fitted fitted{{0}, {}, {0, n}};
    for (int i = 0; i < n; ++i) fitted.boundaries.push_back(static_cast<float>(random() % 40));
    std::sort(fitted.boundaries.begin(), fitted.boundaries.end());
    Buckets buckets;
    ASSERT_TRUE(fitted.Make(&buckets).ok());
    Entries in{{}, {kInf, -kInf, -0.0f, 1e-42f}, {}}, out;
    for (int i = -2; i < 84; ++i) in.values.push_back(static_cast<float>(i) / 2);
    in.ids.assign(in.values.size(), 0);
    in.row_splits = {0, static_cast<int64_t>(in.ids.size())};
    for (const Side side : {Side::kLeft, Side::kRight}) {
      ASSERT_TRUE(Discretize(in, buckets, {side, MissingPolicy::kBucket, UnknownPolicy::kError},
                             false, 1, Serial, &out)
                      .ok());
      const auto& b = fitted.boundaries;
      for (size_t k = 0; k < in.ids.size(); ++k) {
        const auto at = side == Side::kLeft ? std::lower_bound(b.begin(), b.end(), in.values[k])
                                            : std::upper_bound(b.begin(), b.end(), in.values[k]);
        EXPECT_EQ(out.ids[k], at - b.begin()) << in.values[k] << " of " << n;
        EXPECT_EQ(out.values[k], 1);
      }
    }
  }
}

// Sizes at and around those at which a tree gets another level.
TEST(Discretize, SearchIsExactForTreesOfEverySize) {
  std::mt19937 random(4);
  Fitted fitted{{}, {}, {0}};
  for (const int n : {0,   15,  16,   17,   32,   33,   255,  256,  257,  271,  272,    273,   288,
                      289, 300, 4351, 4352, 4353, 4367, 4368, 4369, 4640, 5000, 70'000, 80'000}) {
    fitted.features.push_back(n);
    std::vector<float> boundaries(n);
    for (float& b : boundaries) b = static_cast<float>(random() % (2 * n)) - static_cast<float>(n);
    std::sort(boundaries.begin(), boundaries.end());
    fitted.boundaries.insert(fitted.boundaries.end(), boundaries.begin(), boundaries.end());
    fitted.splits.push_back(static_cast<int64_t>(fitted.boundaries.size()));
  }
  Buckets buckets;
  ASSERT_TRUE(fitted.Make(&buckets).ok());
  Entries in, out;
  for (int k = 0; k < 100'000; ++k) {
    const int64_t n = fitted.features[random() % fitted.features.size()];
    in.ids.push_back(n);
    const int64_t range = 4 * n + 10;
    in.values.push_back(static_cast<float>(static_cast<int64_t>(random() % range) - range / 2) / 2);
  }
  in.values[0] = kInf;
  in.values[1] = -kInf;
  in.row_splits = {0, static_cast<int64_t>(in.ids.size())};
  // In the second half, the entries of a feature follow each other.
  std::sort(in.ids.begin() + in.row_splits[1] / 2, in.ids.end());
  for (const Side side : {Side::kLeft, Side::kRight}) {
    ASSERT_TRUE(Discretize(in, buckets, {side, MissingPolicy::kDrop, UnknownPolicy::kError}, false,
                           1, Serial, &out)
                    .ok());
    for (size_t k = 0; k < in.ids.size(); ++k) {
      const auto f = std::lower_bound(fitted.features.begin(), fitted.features.end(), in.ids[k]) -
                     fitted.features.begin();
      const auto begin = fitted.boundaries.begin() + fitted.splits[f];
      const auto end = fitted.boundaries.begin() + fitted.splits[f + 1];
      const auto at = side == Side::kLeft ? std::lower_bound(begin, end, in.values[k])
                                          : std::upper_bound(begin, end, in.values[k]);
      ASSERT_EQ(out.ids[k], fitted.splits[f] + f + (at - begin)) << in.ids[k] << " boundaries";
    }
  }
}

TEST(Discretize, FindsFeaturesWithIdsCloseTogetherAndFarApart) {
  for (const int64_t step : {int64_t{1}, int64_t{7}, int64_t{1} << 33}) {
    for (const int64_t n : {0, 1, 2, 3, 1000}) {
      Fitted fitted{{}, {}, std::vector<int64_t>(n + 1, 0)};
      for (int64_t f = 0; f < n; ++f) fitted.features.push_back((f - n / 2) * step);
      Buckets buckets;
      ASSERT_TRUE(fitted.Make(&buckets).ok());
      for (int64_t f = 0; f < n; ++f) {
        EXPECT_EQ(buckets.Find(fitted.features[f]), f);
        EXPECT_EQ(buckets.Find(fitted.features[f] + 1), step == 1 && f + 1 < n ? f + 1 : -1);
      }
      EXPECT_EQ(buckets.Find(INT64_MIN), -1);
      EXPECT_EQ(buckets.Find(INT64_MAX), -1);
    }
  }
}

TEST(Discretize, FindsFeaturesWithTheSmallestAndTheLargestIds) {
  Buckets buckets;
  const Fitted fitted{{INT64_MIN, -1, 0, INT64_MAX}, {}, {0, 0, 0, 0, 0}};
  ASSERT_TRUE(fitted.Make(&buckets).ok());
  for (int64_t f = 0; f < 4; ++f) EXPECT_EQ(buckets.Find(fitted.features[f]), f);
  EXPECT_EQ(buckets.Find(1), -1);
}

TEST(Discretize, DroppingShortensRowsAndKeepsOrder) {
  Buckets buckets;
  const Fitted fitted{{5}, {1}, {0, 1}};
  ASSERT_TRUE(fitted.Make(&buckets).ok());
  const Entries in{{5, 9, 5, 9, 5, 5}, {0, 0, kNan, kNan, 2, 1}, {0, 2, 2, 4, 6}};
  Entries out;
  for (const int64_t threads : {1, 3}) {
    ASSERT_TRUE(Discretize(in, buckets, {Side::kLeft, MissingPolicy::kDrop, UnknownPolicy::kDrop},
                           false, 4, Sharded(threads), &out)
                    .ok());
    EXPECT_EQ(out, (Entries{{0, 1, 0}, {1, 1, 1}, {0, 1, 1, 1, 3}}));
  }
  // Without a missing bucket the pass-through space starts at 2.
  ASSERT_TRUE(Discretize(in, buckets, {Side::kLeft, MissingPolicy::kDrop, UnknownPolicy::kPass},
                         false, 1, Serial, &out)
                  .ok());
  ASSERT_EQ(out.ids.size(), 4u);
  EXPECT_GE(out.ids[1], 2);
  EXPECT_LT(out.ids[1], 4);
  EXPECT_EQ(out.values[1], 0);
}

TEST(Discretize, TheMissingBucketIsTheLastOfItsFeature) {
  Buckets buckets;
  const Fitted fitted{{1, 2}, {1, 2, 3}, {0, 2, 3}};
  ASSERT_TRUE(fitted.Make(&buckets).ok());
  EXPECT_EQ(buckets.num_buckets(MissingPolicy::kBucket), 4 + 3);
  EXPECT_EQ(buckets.num_buckets(MissingPolicy::kDrop), 3 + 2);
  Entries out;
  ASSERT_TRUE(
      Discretize({{1, 2, 2}, {kNan, kNan, 9}, {0, 3}}, buckets, {}, false, 4, Serial, &out).ok());
  EXPECT_EQ(out.ids, (std::vector<int64_t>{3, 6, 5}));
}

TEST(Discretize, AHashedMissingBucketDoesNotDependOnTheBoundaries) {
  Buckets few, many;
  const Fitted one{{1}, {1}, {0, 1}}, three{{1}, {1, 2, 3}, {0, 3}};
  ASSERT_TRUE(one.Make(&few).ok());
  ASSERT_TRUE(three.Make(&many).ok());
  const Entries in{{1, 1, 8}, {kNan, 0, 4}, {0, 3}};
  Entries a, b;
  ASSERT_TRUE(Discretize(in, few, {}, true, 62, Serial, &a).ok());
  ASSERT_TRUE(Discretize(in, many, {}, true, 62, Serial, &b).ok());
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.values, (std::vector<float>{1, 1, 4}));
}

TEST(Discretize, InvalidBoundariesAreRejected) {
  Buckets buckets;
  const std::vector<Fitted> bad = {
      {{}, {}, {}},
      {{1}, {}, {0}},
      {{1}, {1}, {0, 2}},
      {{1}, {1}, {0, 0}},
      {{1}, {1}, {-1, 1}},
      {{1}, {1, 2}, {1, 2}},
      {{1, 1}, {}, {0, 0, 0}},
      {{2, 1}, {}, {0, 0, 0}},
      {{1, 2}, {1}, {0, 5, 1}},
      {{1, 2}, {1}, {0, -5, 1}},
      {{1, 2}, {1}, {0, INT64_MIN, 1}},
      {{1}, {2, 1}, {0, 2}},
      {{1}, {kNan}, {0, 1}},
      {{1}, {1, kNan}, {0, 2}},
  };
  for (const Fitted& fitted : bad) EXPECT_FALSE(fitted.Make(&buckets).ok());
  // The failed calls changed nothing.
  EXPECT_EQ(buckets.num_features(), 0);
  EXPECT_EQ(buckets.Find(1), -1);
}

TEST(Discretize, InvalidBatchesAreRejected) {
  Buckets buckets;
  ASSERT_TRUE((Fitted{{1}, {}, {0, 0}}).Make(&buckets).ok());
  const std::vector<Entries> bad = {
      {{1}, {1}, {0, 2}},    {{1}, {1}, {1, 1}},    {{1}, {1}, {0}},        {{1}, {}, {0, 1}},
      {{1}, {1, 1}, {0, 1}}, {{1}, {1}, {0, 5, 1}}, {{1}, {1}, {0, -5, 1}},
  };
  Entries out;
  for (const Entries& in : bad) {
    for (const bool hashing : {false, true}) {
      EXPECT_FALSE(Discretize(in, buckets, {}, hashing, 4, Serial, &out).ok());
      EXPECT_TRUE(out.ids.empty());
    }
  }
}

TEST(Discretize, ReportsTheFirstUnknownFeatureForAnyNumberOfThreads) {
  Buckets buckets;
  ASSERT_TRUE((Fitted{{1}, {}, {0, 0}}).Make(&buckets).ok());
  Entries in{std::vector<int64_t>(1000, 1), std::vector<float>(1000, 0), {0, 1000}}, out;
  in.ids[600] = 7;
  in.ids[999] = 8;
  for (const int64_t threads : {1, 2, 8}) {
    const Status s =
        Discretize(in, buckets, {Side::kLeft, MissingPolicy::kDrop, UnknownPolicy::kError}, false,
                   4, Sharded(threads), &out);
    EXPECT_EQ(s.message(), "ids[600] = 7 is not one of the 1 adapted features");
  }
}

TEST(Discretize, NothingIsWrittenIfAllocationFails) {
  Buckets buckets;
  ASSERT_TRUE((Fitted{{1}, {}, {0, 0}}).Make(&buckets).ok());
  const std::vector<int64_t> ids = {1, 1}, splits = {0, 2};
  std::vector<int64_t> out_splits(2);
  const Csr<int64_t> batch{ids, {}, splits, true};
  for (const MissingPolicy missing : {MissingPolicy::kBucket, MissingPolicy::kDrop}) {
    EXPECT_TRUE(PercentileDiscretize<int64_t>(
                    batch, buckets, {Side::kLeft, missing, UnknownPolicy::kPass}, 4, Serial,
                    [](int64_t) { return EntriesOutput{nullptr, nullptr}; }, out_splits.data())
                    .ok());
  }
}

}  // namespace discretize_test
}  // namespace twml
