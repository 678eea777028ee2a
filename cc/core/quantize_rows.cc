#include "cc/core/quantize_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "cc/core/float16.h"
#include "cc/core/scratch.h"
#include "cc/core/simd_dispatch.h"

namespace twml {
namespace {

constexpr uint32_t kMagic = 0x31717774;  // "twq1"
constexpr int64_t kMaxCols = int64_t{1} << 31;
constexpr int kMaxBins = 4096;
constexpr int64_t kRowsPerTask = 64;  // of which each task counts the raw ones

// The message: the header; a record for each row; the raw rows, each as float32 [cols].
struct Header {
  uint32_t magic;
  uint32_t bits;
  int64_t rows;
  int64_t cols;
  int64_t raw_rows;
};
static_assert(sizeof(Header) == 32);

// A record is scale (float16), exponent (int8), offset (float16) and the codes in as many bytes as
// they need, at least 2, without gaps between bytes and numbers. The scale also says what a row is:
//   kRaw       the row is the next one of the raw rows, and the rest of the record is 0
//   kConstant  the items are one float32, which has the place of the offset and of 2 bytes of codes
constexpr uint16_t kRaw = 0x7e00;  // a NaN
constexpr uint16_t kConstant = 0;
constexpr int64_t kScaleAt = 0, kExponentAt = 2, kOffsetAt = 3, kCodesAt = 5;

int64_t CodeBytes(int64_t cols, int bits) { return (cols * bits + 7) / 8; }
int64_t RecordBytes(int64_t cols, int bits) {
  return kCodesAt + std::max<int64_t>(2, CodeBytes(cols, bits));
}

bool IsWidth(int64_t bits) { return bits == 8 || bits == 4 || bits == 3 || bits == 2; }

// Code i has bits [i * bits, (i + 1) * bits), counted from the lowest bit of the first byte.
void PackCodes(const uint8_t* codes, int64_t n, int bits, uint8_t* out) {
  if (bits == 8) {
    std::memcpy(out, codes, n);
    return;
  }
  uint32_t waiting = 0;
  int used = 0;
  for (int64_t i = 0; i < n; ++i) {
    waiting |= static_cast<uint32_t>(codes[i]) << used;
    used += bits;
    if (used >= 8) {
      *out++ = static_cast<uint8_t>(waiting);
      waiting >>= 8;
      used -= 8;
    }
  }
  if (used > 0) *out = static_cast<uint8_t>(waiting);
}

void UnpackCodes(const uint8_t* from, int64_t n, int bits, uint8_t* codes) {
  if (n == 0) return;
  if (bits == 8) {
    std::memcpy(codes, from, n);
    return;
  }
  const uint32_t mask = (1u << bits) - 1;
  uint32_t waiting = 0;
  int available = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (available < bits) {
      waiting |= static_cast<uint32_t>(*from++) << available;
      available += 8;
    }
    codes[i] = static_cast<uint8_t>(waiting & mask);
    waiting >>= bits;
    available -= bits;
  }
}

// A grid that covers [low, high], with its parameters as float16 bits.
struct Candidate {
  uint16_t offset_bits;
  uint16_t scale_bits;
  QuantizedGrid grid;
};

// low <= high, both in [-2, 2]. The offset is rounded down and the scale up, so rounding never
// excludes a part of the interval.
Candidate Cover(float low, float high, int levels) {
  Candidate c;
  c.offset_bits = Float16Down(low);
  const float offset = FromFloat16(c.offset_bits);
  c.scale_bits = std::max<uint16_t>(1, Float16Up((high - offset) / static_cast<float>(levels)));
  const float scale = FromFloat16(c.scale_bits);
  c.grid = {offset, scale, 1 / scale, levels};
  return c;
}

Candidate Search(const float* row, int64_t n, RowRange range, const QuantizeOptions& options,
                 const QuantizeKernels& kernels) {
  const int levels = (1 << options.bits) - 1;
  Candidate best = Cover(range.min, range.max, levels);
  const int steps = static_cast<int>(static_cast<float>(options.bins) * options.ratio);
  if (steps < 1) return best;
  const auto error = [&](const Candidate& c) { return kernels.squared_error(row, n, c.grid); };
  double least = error(best);
  int below = 0, above = 0;  // bins that are cut off
  const auto cut = [&](int from_low, int from_high) {
    const float size = range.max - range.min, bins = static_cast<float>(options.bins);
    const float low = static_cast<float>(from_low) / bins,
                high = static_cast<float>(from_high) / bins;
    // The products are rounded to float before the sums, which are in double so that the compiler
    // cannot fuse the two.
    const auto sum = [](double begin, double part) { return static_cast<float>(begin + part); };
    const float at_low = sum(range.min, size * low), at_high = sum(range.max, -(size * high));
    return Cover(at_low, std::max(at_low, at_high), levels);
  };
  for (int step = 0; step < steps && below + above + 1 < options.bins; ++step) {
    const Candidate shorter_low = cut(below + 1, above), shorter_high = cut(below, above + 1);
    const double low_error = error(shorter_low), high_error = error(shorter_high);
    const bool cut_low = low_error < high_error;
    (cut_low ? below : above) += 1;
    const double now = cut_low ? low_error : high_error;
    if (now < least) {
      least = now;
      best = cut_low ? shorter_low : shorter_high;
    }
  }
  return best;
}

class RowEncoder {
 public:
  RowEncoder(int64_t cols, const QuantizeOptions& options)
      : cols_(cols),
        options_(options),
        kernels_(GetQuantizeKernels()),
        scaled_(cols),
        codes_(cols) {}

  // Writes the record of a row whose items are all finite.
  void Encode(const float* row, RowRange range, uint8_t* record) const {
    if (cols_ == 0 || range.min == range.max) {
      std::memset(record, 0, RecordBytes(cols_, options_.bits));
      const float item = cols_ == 0 ? 0 : row[0];
      std::memcpy(record + kOffsetAt, &item, sizeof(item));
      return;
    }
    int exponent;
    const Candidate c = FindGrid(row, range, &exponent);
    std::memcpy(record + kScaleAt, &c.scale_bits, sizeof(c.scale_bits));
    record[kExponentAt] = static_cast<uint8_t>(static_cast<int8_t>(exponent));
    std::memcpy(record + kOffsetAt, &c.offset_bits, sizeof(c.offset_bits));
    std::memset(record + kCodesAt, 0, RecordBytes(cols_, options_.bits) - kCodesAt);
    PackCodes(codes_.data(), cols_, options_.bits, record + kCodesAt);
  }

  // Writes a row for ScoringKernels::sum_quantized_rows. Its items must be finite.
  void EncodeForScoring(const float* row, RowRange range, uint8_t* out) const {
    float grid[2] = {0, cols_ == 0 ? 0 : row[0]};  // scale and offset
    const bool constant = cols_ == 0 || range.min == range.max;
    if (!constant) {
      int exponent;
      const Candidate c = FindGrid(row, range, &exponent);
      grid[0] = std::ldexp(c.grid.scale, exponent);
      grid[1] = std::ldexp(c.grid.offset, exponent);
    }
    std::memcpy(out, grid, sizeof(grid));
    uint8_t* const codes = out + kQuantizedRowHead;
    const int64_t half = (cols_ + 1) / 2;
    const auto code = [&](int64_t i) { return constant || i >= cols_ ? 0 : codes_.data()[i]; };
    if (options_.bits == 8) {
      for (int64_t i = 0; i < cols_; ++i) codes[i] = static_cast<uint8_t>(code(i));
      return;
    }
    for (int64_t i = 0; i < half; ++i) {
      codes[i] = static_cast<uint8_t>(code(i) | code(i + half) << 4);
    }
  }

  RowRange Range(const float* row) const {
    return cols_ == 0 ? RowRange{0, 0, true} : kernels_.range(row, cols_);
  }

 private:
  // Finds the grid of a row whose items differ, in units of 2^exponent, and its codes.
  Candidate FindGrid(const float* row, RowRange range, int* exponent) const {
    // The largest magnitude gets into [1, 2), as far as the exponent fits into 8 bits.
    *exponent = std::max(-126, std::ilogb(std::max(std::abs(range.min), std::abs(range.max))));
    const double factor = std::ldexp(1.0, -*exponent);
    kernels_.scale(row, cols_, factor, scaled_.data());
    const RowRange scaled = {static_cast<float>(range.min * factor),
                             static_cast<float>(range.max * factor), true};
    const Candidate c = Search(scaled_.data(), cols_, scaled, options_, kernels_);
    kernels_.encode(scaled_.data(), cols_, c.grid, codes_.data());
    return c;
  }

  const int64_t cols_;
  const QuantizeOptions options_;
  const QuantizeKernels& kernels_;
  Scratch<float> scaled_;
  Scratch<uint8_t> codes_;
};

uint16_t ScaleOf(const uint8_t* record) {
  uint16_t scale;
  std::memcpy(&scale, record + kScaleAt, sizeof(scale));
  return scale;
}

// The number of raw rows before each task's rows, and of all. `count` returns the number in [begin,
// end).
template <class Count>
std::vector<int64_t> FirstRawRows(int64_t rows, int64_t cost, const ParallelFor& parallel_for,
                                  const Count& count) {
  const int64_t tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  std::vector<int64_t> first(tasks + 1, 0);
  parallel_for(tasks, cost * kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      first[t + 1] = count(t * kRowsPerTask, std::min(rows, (t + 1) * kRowsPerTask));
    }
  });
  for (int64_t t = 0; t < tasks; ++t) first[t + 1] += first[t];
  return first;
}

Status CheckHeader(const Header& h, int64_t size) {
  const auto other = [&] {
    return Invalid("quantized must be an output of quantize_rows, got ", size,
                   " bytes of another form");
  };
  if (h.magic != kMagic || !IsWidth(h.bits) || h.rows < 0 || h.cols < 0 || h.cols > kMaxCols ||
      h.raw_rows < 0 || h.raw_rows > h.rows) {
    return other();
  }
  int64_t records, row_bytes, raw;
  if (__builtin_mul_overflow(h.rows, RecordBytes(h.cols, static_cast<int>(h.bits)), &records) ||
      __builtin_mul_overflow(h.cols, int64_t{sizeof(float)}, &row_bytes) ||
      __builtin_mul_overflow(h.raw_rows, row_bytes, &raw) || records > size || raw > size ||
      static_cast<int64_t>(sizeof(h)) + records + raw != size) {
    return other();
  }
  return Status();
}

Status CheckOptions(const Matrix<const float>& rows, const QuantizeOptions& options) {
  if (options.bins < 0 || options.bins > kMaxBins) {
    return Invalid("bins must be in [0, ", kMaxBins, "], got ", options.bins);
  }
  if (!(options.ratio >= 0 && options.ratio <= 1)) {
    return Invalid("ratio must be in [0, 1], got ", options.ratio);
  }
  if (rows.dim > kMaxCols) {
    return Invalid("rows must have at most ", kMaxCols, " columns, got ", rows.dim);
  }
  return Status();
}

// About the nanoseconds that the search takes for a row.
int64_t CostOfRow(int64_t cols, const QuantizeOptions& options) {
  const int64_t passes =
      2 + 2 * static_cast<int64_t>(static_cast<float>(options.bins) * options.ratio);
  return cols * passes / 2 + 50;
}

}  // namespace

Status QuantizeRows(const Matrix<const float>& rows, const QuantizeOptions& options,
                    const ParallelFor& parallel_for, const AllocateBytes& allocate) {
  if (!IsWidth(options.bits)) return Invalid("bits must be 8, 4, 3 or 2, got ", options.bits);
  TWML_RETURN_IF_ERROR(CheckOptions(rows, options));
  const int64_t n = rows.rows, cols = rows.dim;
  const int64_t record_bytes = RecordBytes(cols, options.bits);
  const QuantizeKernels& kernels = GetQuantizeKernels();
  const auto is_finite = [&](int64_t r) {
    return cols == 0 || kernels.range(rows.data + r * cols, cols).finite;
  };
  const std::vector<int64_t> first_raw =
      FirstRawRows(n, cols / 4 + 4, parallel_for, [&](int64_t begin, int64_t end) {
        int64_t raw = 0;
        for (int64_t r = begin; r < end; ++r) raw += !is_finite(r);
        return raw;
      });
  const Header header = {kMagic, static_cast<uint32_t>(options.bits), n, cols, first_raw.back()};
  const int64_t row_bytes = cols * static_cast<int64_t>(sizeof(float));
  uint8_t* const out = allocate(static_cast<int64_t>(sizeof(header)) + n * record_bytes +
                                header.raw_rows * row_bytes);
  if (out == nullptr) return Status();
  std::memcpy(out, &header, sizeof(header));
  uint8_t* const records = out + sizeof(header);
  uint8_t* const raw = records + n * record_bytes;
  const auto tasks = static_cast<int64_t>(first_raw.size()) - 1;
  parallel_for(tasks, kRowsPerTask * CostOfRow(cols, options), [&](int64_t begin, int64_t end) {
    const RowEncoder encoder(cols, options);
    for (int64_t t = begin; t < end; ++t) {
      int64_t next_raw = first_raw[t];
      for (int64_t r = t * kRowsPerTask; r < std::min(n, (t + 1) * kRowsPerTask); ++r) {
        const float* const row = rows.data + r * cols;
        uint8_t* const record = records + r * record_bytes;
        const RowRange range = encoder.Range(row);
        if (range.finite) {
          encoder.Encode(row, range, record);
          continue;
        }
        std::memset(record, 0, record_bytes);
        std::memcpy(record + kScaleAt, &kRaw, sizeof(kRaw));
        std::memcpy(raw + next_raw++ * row_bytes, row, row_bytes);
      }
    }
  });
  return Status();
}

Status QuantizeToRows(const Matrix<const float>& rows, const QuantizeOptions& options,
                      const ParallelFor& parallel_for, uint8_t* out) {
  if (options.bits != 8 && options.bits != 4) {
    return Invalid("bits must be 8 or 4, got ", options.bits);
  }
  TWML_RETURN_IF_ERROR(CheckOptions(rows, options));
  const int64_t n = rows.rows, cols = rows.dim;
  const int64_t row_bytes = QuantizedRowBytes(cols, options.bits);
  std::atomic<int64_t> first_bad{n};
  parallel_for(n, CostOfRow(cols, options), [&](int64_t begin, int64_t end) {
    const RowEncoder encoder(cols, options);
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = rows.data + r * cols;
      const RowRange range = encoder.Range(row);
      if (range.finite) {
        encoder.EncodeForScoring(row, range, out + r * row_bytes);
        continue;
      }
      int64_t bad = first_bad.load();
      while (r < bad && !first_bad.compare_exchange_weak(bad, r)) {
      }
      return;
    }
  });
  if (first_bad == n) return Status();
  return Invalid("rows must be finite, got NaN or infinity in row ", first_bad.load());
}

Status DequantizeRows(Span<const uint8_t> quantized, const ParallelFor& parallel_for,
                      const AllocateMatrix& allocate) {
  Header h = {};
  if (quantized.size() >= static_cast<int64_t>(sizeof(h))) {
    std::memcpy(&h, quantized.data(), sizeof(h));
  }
  TWML_RETURN_IF_ERROR(CheckHeader(h, quantized.size()));
  const int bits = static_cast<int>(h.bits);
  const int64_t record_bytes = RecordBytes(h.cols, bits);
  const int64_t row_bytes = h.cols * static_cast<int64_t>(sizeof(float));
  const uint8_t* const records = quantized.data() + sizeof(h);
  const uint8_t* const raw = records + h.rows * record_bytes;
  const std::vector<int64_t> first_raw =
      FirstRawRows(h.rows, 2, parallel_for, [&](int64_t begin, int64_t end) {
        int64_t count = 0;
        for (int64_t r = begin; r < end; ++r) count += ScaleOf(records + r * record_bytes) == kRaw;
        return count;
      });
  if (first_raw.back() != h.raw_rows) {
    return Invalid("quantized must be an output of quantize_rows, got ", first_raw.back(),
                   " references to ", h.raw_rows, " raw rows");
  }
  float* const out = allocate(h.rows, h.cols);
  if (out == nullptr) return Status();
  const QuantizeKernels& kernels = GetQuantizeKernels();
  const auto tasks = static_cast<int64_t>(first_raw.size()) - 1;
  parallel_for(tasks, kRowsPerTask * (h.cols + 20), [&](int64_t begin, int64_t end) {
    const Scratch<uint8_t> codes(h.cols);
    for (int64_t t = begin; t < end; ++t) {
      int64_t next_raw = first_raw[t];
      for (int64_t r = t * kRowsPerTask; r < std::min(h.rows, (t + 1) * kRowsPerTask); ++r) {
        const uint8_t* const record = records + r * record_bytes;
        float* const row = out + r * h.cols;
        const uint16_t scale = ScaleOf(record);
        if (scale == kRaw) {
          if (row_bytes > 0) std::memcpy(row, raw + next_raw * row_bytes, row_bytes);
          ++next_raw;
        } else if (scale == kConstant) {
          float item;
          std::memcpy(&item, record + kOffsetAt, sizeof(item));
          std::fill(row, row + h.cols, item);
        } else {
          uint16_t offset;
          std::memcpy(&offset, record + kOffsetAt, sizeof(offset));
          const double factor = std::ldexp(1.0, static_cast<int8_t>(record[kExponentAt]));
          UnpackCodes(record + kCodesAt, h.cols, bits, codes.data());
          kernels.decode(codes.data(), h.cols, FromFloat16(offset), FromFloat16(scale), factor,
                         row);
        }
      }
    }
  });
  return Status();
}

}  // namespace twml
