// Shared by the C++ tests: a ParallelFor with any number of threads, random batches, comparisons.
#ifndef TWML_TESTS_CC_TESTING_H_
#define TWML_TESTS_CC_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "cc/core/csr.h"
#include "cc/core/parallel.h"

namespace twml {

// Divides every range into `shards` parts even if it is small, so that small tests cover all
// divisions.
inline ParallelFor Sharded(int64_t shards) {
  return [shards](int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int64_t s = 0; s < shards; ++s) {
      const int64_t begin = total * s / shards, end = total * (s + 1) / shards;
      if (begin < end) threads.emplace_back([&body, begin, end] { body(begin, end); });
    }
    for (auto& t : threads) t.join();
  };
}

template <class Id>
struct Batch {
  std::vector<Id> ids;
  std::vector<float> values;
  std::vector<int64_t> row_splits{0};

  Csr<Id> csr(bool binary = false) const {
    return {ids, binary ? Span<const float>() : Span<const float>(values), row_splits, binary};
  }
  int64_t num_rows() const { return static_cast<int64_t>(row_splits.size()) - 1; }
};

template <class Id>
Batch<Id> RandomBatch(const std::vector<int64_t>& row_lengths, int64_t input_dim, int seed = 1) {
  std::mt19937_64 random(seed);
  Batch<Id> batch;
  for (const int64_t length : row_lengths) {
    for (int64_t i = 0; i < length; ++i) {
      batch.ids.push_back(static_cast<Id>(random() % input_dim));
      batch.values.push_back(static_cast<float>(random() % 1000) / 500 - 1);
    }
    batch.row_splits.push_back(static_cast<int64_t>(batch.ids.size()));
  }
  return batch;
}

inline std::vector<float> RandomFloats(int64_t n, int seed = 2) {
  std::mt19937_64 random(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(random() % 2000) / 1000 - 1;
  return out;
}

// FNV-1a of the bytes of all numbers, after what `digest` is of.
constexpr uint64_t kEmptyDigest = 14695981039346656037u;
inline uint64_t Digest(const std::vector<float>& numbers, uint64_t digest) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(numbers.data());
  for (size_t i = 0; i < numbers.size() * sizeof(float); ++i) {
    digest = (digest ^ bytes[i]) * 1099511628211u;
  }
  return digest;
}

// Expects equality up to `tolerance` times the largest expected number.
inline void ExpectNear(const std::vector<float>& got, const std::vector<double>& want,
                       double tolerance = 3e-5) {
  ASSERT_EQ(got.size(), want.size());
  double scale = 1;
  for (const double w : want) scale = std::max(scale, std::abs(w));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * scale) << "at " << i;
  }
}

}  // namespace twml

#endif  // TWML_TESTS_CC_TESTING_H_
