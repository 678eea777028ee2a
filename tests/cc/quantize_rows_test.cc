#include "cc/core/quantize_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cc/core/float16.h"
#include "tests/cc/testing.h"

namespace twml {
namespace quantize_rows_test {

std::vector<uint8_t> Quantized(const std::vector<float>& items, int64_t rows, int64_t dim,
                               QuantizeOptions options, int64_t shards = 1) {
  std::vector<uint8_t> out;
  const Status status =
      QuantizeRows({items.data(), rows, dim}, options, Sharded(shards), [&](int64_t bytes) {
        out.resize(bytes);
        return out.data();
      });
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

Status Dequantize(const std::vector<uint8_t>& bytes, std::vector<float>* out, int64_t shards = 1) {
  return DequantizeRows(bytes, Sharded(shards), [&](int64_t rows, int64_t dim) {
    out->assign(rows * dim + 1, 0);
    out->pop_back();
    return out->data();
  });
}

TEST(Float16, ConversionsAreInverse) {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const float x = FromFloat16(static_cast<uint16_t>(bits));
    EXPECT_EQ(Float16TowardZero(x), bits);
    EXPECT_EQ(Float16Down(x), bits);
    EXPECT_EQ(Float16Up(x), bits);
    if (bits == 0 || bits == 0x7bff) continue;
    const float above = std::nextafter(x, INFINITY);
    EXPECT_EQ(Float16Down(above), bits);
    EXPECT_EQ(Float16Up(above), bits + 1);
    EXPECT_EQ(Float16Down(-above), (bits | 0x8000) + 1);
    EXPECT_EQ(Float16Up(-above), bits | 0x8000);
  }
}

TEST(QuantizeRows, BytesAndRowsDoNotDependOnThreads) {
  for (const int bits : {2, 3, 4, 8}) {
    std::vector<float> items = RandomFloats(300 * 19, bits);
    items[19 * 70 + 3] = INFINITY;
    items[19 * 250] = NAN;
    QuantizeOptions options;
    options.bits = bits;
    const std::vector<uint8_t> one = Quantized(items, 300, 19, options);
    EXPECT_EQ(one, Quantized(items, 300, 19, options, 7));
    std::vector<float> rows, again;
    ASSERT_TRUE(Dequantize(one, &rows).ok());
    ASSERT_TRUE(Dequantize(one, &again, 7).ok());
    ASSERT_EQ(std::memcmp(rows.data(), again.data(), rows.size() * sizeof(float)), 0);
    ASSERT_EQ(std::memcmp(&rows[19 * 250], &items[19 * 250], 19 * sizeof(float)), 0);
  }
}

TEST(QuantizeRows, EveryShapeComesBack) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const int64_t rows : {0, 1, 63, 64, 65}) {
      for (const int64_t dim : {0, 1, 2, 7, 15, 16, 17, 33}) {
        QuantizeOptions options;
        options.bits = bits;
        options.bins = static_cast<int>(rows % 5) * 3;
        std::vector<float> items = RandomFloats(rows * dim + 1, 3), out;
        ASSERT_TRUE(Dequantize(Quantized(items, rows, dim, options), &out).ok());
        ASSERT_EQ(static_cast<int64_t>(out.size()), rows * dim);
      }
    }
  }
}

TEST(QuantizeRows, AnyBytesAreAnErrorOrRows) {
  QuantizeOptions options;
  options.bits = 3;
  std::vector<float> items = RandomFloats(20 * 5), out;
  items[7] = NAN;
  const std::vector<uint8_t> good = Quantized(items, 20, 5, options);
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(Dequantize(std::vector<uint8_t>(good.begin(), good.begin() + n), &out).ok());
  }
  std::mt19937 random(5);
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<uint8_t> bytes = good;
    const size_t among = trial % 2 == 0 ? 32 : bytes.size();  // the header, or everything
    for (int i = 0; i < 3; ++i) bytes[random() % among] = static_cast<uint8_t>(random());
    static_cast<void>(Dequantize(bytes, &out).ok());
  }
}

TEST(QuantizeRows, ARecordOfAGridWithoutColumnsIsARow) {
  for (const int bits : {2, 3, 4, 8}) {
    QuantizeOptions options;
    options.bits = bits;
    std::vector<uint8_t> bytes = Quantized({}, 3, 0, options);
    std::fill(bytes.begin() + 32, bytes.end(), uint8_t{1});
    std::vector<float> out = {1};
    EXPECT_TRUE(Dequantize(bytes, &out).ok());
    EXPECT_TRUE(out.empty());
  }
}

TEST(QuantizeRows, OptionsOutOfRangeAreErrors) {
  const auto fails = [](int bits, int bins, float ratio) {
    QuantizeOptions options;
    options.bits = bits;
    options.bins = bins;
    options.ratio = ratio;
    return !QuantizeRows({nullptr, 0, 3}, options, Serial, [](int64_t) -> uint8_t* {
              return nullptr;
            }).ok();
  };
  EXPECT_FALSE(fails(8, 0, 0));
  for (const int bits : {-1, 0, 1, 5, 6, 7, 16}) EXPECT_TRUE(fails(bits, 32, 0.5));
  EXPECT_TRUE(fails(8, -1, 0.5));
  EXPECT_TRUE(fails(8, 4097, 0.5));
  EXPECT_TRUE(fails(8, 32, -0.1f));
  EXPECT_TRUE(fails(8, 32, NAN));
}

}  // namespace quantize_rows_test
}  // namespace twml
