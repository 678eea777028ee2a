// The bits of what the kernels compute, at every SIMD level of this CPU. They are the same for all
// compilers and optimizations, because the kernels state where a product and a sum are rounded
// once.
#include <cstring>
#include <string>

#include "cc/core/simd_dispatch.h"
#include "tests/cc/testing.h"

namespace twml {
#define TWML_LEVEL(name)                       \
  namespace name {                             \
  extern const RowKernels kRowKernels;         \
  extern const ScoringKernels kScoringKernels; \
  }
TWML_LEVEL(baseline)
#if defined(__x86_64__)
TWML_LEVEL(avx2)
TWML_LEVEL(avx512)
#endif
#undef TWML_LEVEL

namespace {

constexpr int64_t kRows = 20, kEntries = 37;

// The digests of each kind of kernel. Where they are equal, the number of lanes does not matter.
struct Level {
  const char* name;
  bool supported;
  const RowKernels& rows;
  const ScoringKernels& scoring;
  uint64_t sums, dots, dense, activations, quantized;
};

std::vector<Level> Levels() {
  return {
#if defined(__x86_64__)
      {"baseline", true, baseline::kRowKernels, baseline::kScoringKernels, 18235732624019003558u,
       9770209989115394870u, 3224684272743162737u, 5494512335771830430u, 3639991075187183172u},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx2::kRowKernels,
       avx2::kScoringKernels, 3915308540495951989u, 5166156405807091431u, 8884826473455746767u,
       6529328389399392633u, 16422613426246423899u},
      {"avx512",
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
       avx512::kRowKernels, avx512::kScoringKernels, 3915308540495951989u, 17452459067632769450u,
       323194192686138726u, 6529328389399392633u, 18269488866804012330u},
#elif defined(__ARM_FEATURE_FMA)
      {"baseline", true, baseline::kRowKernels, baseline::kScoringKernels, 3915308540495951989u,
       7691654641932512843u, 11350996535979489682u, 6529328389399392633u, 15165355050388708927u},
#endif
  };
}

std::vector<int64_t> Widths() {
  std::vector<int64_t> widths = {47, 64, 100, 130, 257};
  for (int64_t dim = 1; dim <= 40; ++dim) widths.push_back(dim);
  return widths;
}

std::vector<int64_t> Ids() {
  std::vector<int64_t> ids;
  for (int64_t k = 0; k < kEntries; ++k) ids.push_back(k * k % kRows);
  return ids;
}

std::vector<Bfloat16> Rounded(const std::vector<float>& x) {
  std::vector<Bfloat16> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &x[i], sizeof(bits));
    out[i].bits = static_cast<uint16_t>(bits >> 16);
  }
  return out;
}

std::vector<uint8_t> RandomBytes(int64_t n) {
  std::mt19937_64 random(5);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

// Weighted sums of rows and, for the widths that no vector fits into, of parts of a vector.
uint64_t Sums(const Level& level) {
  uint64_t digest = kEmptyDigest;
  const auto ids = Ids();
  const auto values = RandomFloats(kEntries, 3);
  for (const int64_t dim : Widths()) {
    const auto table = RandomFloats(kRows * dim);
    const auto rounded = Rounded(table);
    std::vector<float> out(dim);
    level.rows.float32.int64.sum_rows(table.data(), dim, ids.data(), values.data(), kEntries,
                                      kEntries, out.data());
    digest = Digest(out, digest);
    level.rows.bfloat16.int64.sum_rows(rounded.data(), dim, ids.data(), values.data(), kEntries,
                                       kEntries, out.data());
    digest = Digest(out, digest);
  }
  return digest;
}

// Dot products of rows, and the update rule that needs one.
uint64_t Dots(const Level& level) {
  uint64_t digest = kEmptyDigest;
  const auto ids = Ids();
  for (const int64_t dim : Widths()) {
    auto table = RandomFloats(kRows * dim);
    const auto row = RandomFloats(dim, 4);
    std::vector<float> out(kEntries), sum = {1};
    level.rows.float32.int64.dot_rows(table.data(), dim, ids.data(), row.data(), kEntries, kEntries,
                                      out.data());
    float* const slots[kMaxSlots] = {sum.data()};
    const float hyper[] = {0.1f, 0.01f, 1e-6f};
    level.rows.float32.update[static_cast<int>(UpdateRule::kRowWiseAdagrad)](
        table.data(), slots, row.data(), dim, hyper, 0);
    digest = Digest(table, Digest(sum, Digest(out, digest)));
  }
  return digest;
}

// Products of matrices, and of all pairs of vectors.
uint64_t Products(const Level& level) {
  constexpr int64_t kBatch = 5;
  uint64_t digest = kEmptyDigest;
  for (const int64_t in : {1, 2, 7, 16, 33, 70}) {
    const auto x = RandomFloats(kBatch * in, 3);
    for (const int64_t out : {1, 4, 5, 16, 33, 64}) {
      const int64_t columns = out <= kMaxNarrow ? out : (out + kPanel - 1) / kPanel * kPanel;
      const auto weights = RandomFloats(columns * in), bias = RandomFloats(out, 4);
      std::vector<float> y(kBatch * out);
      level.scoring.dense({weights.data(), in, out}, bias.data(), Activation::kLinear, x.data(), in,
                          kBatch, y.data(), out);
      digest = Digest(y, digest);
    }
    std::vector<float> scratch(in * (kBatch + kPanel)), pairs(kBatch * (kBatch - 1) / 2);
    level.scoring.pair_products(x.data(), kBatch, in, scratch.data(), pairs.data());
    digest = Digest(pairs, digest);
  }
  return digest;
}

// The activations that do not call the C library.
uint64_t Activations(const Level& level) {
  uint64_t digest = kEmptyDigest;
  auto x = RandomFloats(2000);
  for (size_t i = 0; i < x.size(); i += 2) x[i] *= 90;
  std::vector<float> y(x.size());
  for (const Activation activation :
       {Activation::kSigmoid, Activation::kTanh, Activation::kSilu, Activation::kExponential}) {
    level.scoring.activate(activation, x.data(), static_cast<int64_t>(x.size()), y.data());
    digest = Digest(y, digest);
  }
  return digest;
}

// Sums of rows of bytes and of codes.
uint64_t QuantizedSums(const Level& level) {
  uint64_t digest = kEmptyDigest;
  const auto ids = Ids();
  const auto values = RandomFloats(kEntries, 3), scales = RandomFloats(2 * kRows, 4);
  for (const int64_t dim : Widths()) {
    std::vector<float> out(dim);
    const auto bytes = RandomBytes(kRows * dim);
    level.scoring.sum_int8_rows(reinterpret_cast<const int8_t*>(bytes.data()), scales.data(), dim,
                                ids.data(), values.data(), kEntries, out.data());
    digest = Digest(out, digest);
    for (const int bits : {8, 4}) {
      const int64_t row_bytes = QuantizedRowBytes(dim, bits);
      auto rows = RandomBytes(kRows * row_bytes);
      for (int64_t r = 0; r < kRows; ++r) {
        std::memcpy(rows.data() + r * row_bytes, scales.data() + 2 * r, kQuantizedRowHead);
      }
      level.scoring.sum_quantized_rows[bits == 4](rows.data(), dim, ids.data(), values.data(),
                                                  kEntries, out.data());
      digest = Digest(out, digest);
    }
  }
  return digest;
}

TEST(KernelBits, EveryCompilerMakesKernelsWithTheSameBits) {
  for (const Level& level : Levels()) {
    if (!level.supported) continue;
    SCOPED_TRACE(level.name);
    EXPECT_EQ(Sums(level), level.sums);
    EXPECT_EQ(Dots(level), level.dots);
    EXPECT_EQ(Products(level), level.dense);
    EXPECT_EQ(Activations(level), level.activations);
    EXPECT_EQ(QuantizedSums(level), level.quantized);
  }
}

}  // namespace
}  // namespace twml
