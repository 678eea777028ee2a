#include "cc/core/int8_rows.h"

#include "cc/core/hash.h"
#include "cc/core/simd_dispatch.h"

namespace twml {

void RowsToInt8(const Matrix<const float>& rows, const uint64_t* seed,
                const ParallelFor& parallel_for, int8_t* codes, float* scales) {
  const QuantizeKernels& kernels = GetQuantizeKernels();
  const int64_t n = rows.dim;
  parallel_for(rows.rows, n / 2 + 5, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = rows.data + r * n;
      if (seed == nullptr) {
        scales[r] = kernels.to_int8(row, n, codes + r * n);
        continue;
      }
      const uint64_t of_row = HashPair(static_cast<int64_t>(*seed), r);
      scales[r] =
          kernels.to_int8_at_random(row, n, static_cast<uint32_t>(of_row >> 32), codes + r * n);
    }
  });
}

void RowsFromInt8(const Matrix<const int8_t>& codes, const float* scales,
                  const ParallelFor& parallel_for, float* out) {
  const QuantizeKernels& kernels = GetQuantizeKernels();
  const int64_t n = codes.dim;
  parallel_for(codes.rows, n / 8 + 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels.from_int8(codes.data + r * n, n, scales[r], out + r * n);
    }
  });
}

}  // namespace twml
