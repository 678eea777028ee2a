#include "cc/core/average_rows.h"

#include <cmath>
#include <cstring>

#include "cc/core/csr.h"
#include "cc/core/prefetch.h"

namespace twml {
namespace {

inline float WidenedWeight(float w) { return w; }
inline float WidenedWeight(Bfloat16 w) {
  const uint32_t bits = static_cast<uint32_t>(w.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Moves an average by the share `share` of its distance to the row, or to the row itself. Not
// inlined, so that there is one copy, with the same rounding, for all types of ids.
template <class W>
__attribute__((noinline)) void MoveTowards(const W* __restrict row, int64_t dim, float share,
                                           float* __restrict average) {
  if (share == 1) {
    for (int64_t i = 0; i < dim; ++i) average[i] = WidenedWeight(row[i]);
  } else {
    for (int64_t i = 0; i < dim; ++i) average[i] += share * (WidenedWeight(row[i]) - average[i]);
  }
}

// Sets the step of a row if it is lower, and returns the old one. Of several threads with the same
// row only one sets it.
inline int64_t AdvanceStep(int64_t* of_row, int64_t step) {
  int64_t last = __atomic_load_n(of_row, __ATOMIC_RELAXED);
  while (last < step && !__atomic_compare_exchange_n(of_row, &last, step, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return last;
}

}  // namespace

template <class Id, class W>
Status AverageRows(Span<const Id> ids, Matrix<const W> weights, const RowAverages& averages,
                   int64_t step, double log_momentum, const ParallelFor& parallel_for) {
  TWML_RETURN_IF_ERROR(CheckIds(ids, weights.rows, parallel_for));
  if (!(log_momentum <= 0)) return Invalid("log_momentum must not be positive, got ", log_momentum);
  if (step <= 0) return Status();
  const int64_t dim = weights.dim;
  parallel_for(ids.size(), 20 + dim / 2, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAhead = 6;
    for (int64_t k = begin; k < end; ++k) {
      if (k + 2 * kAhead < end) __builtin_prefetch(averages.steps + ids[k + 2 * kAhead], 1);
      if (k + kAhead < end) {
        const int64_t next = ids[k + kAhead] * dim;
        PrefetchRow(weights.data + next, dim);
        PrefetchRow(averages.values.data + next, dim);
      }
      const int64_t id = ids[k];
      const int64_t last = AdvanceStep(averages.steps + id, step);
      if (last >= step) continue;
      const double share =
          last <= 0 ? 1 : -std::expm1(static_cast<double>(step - last) * log_momentum);
      MoveTowards(weights.data + id * dim, dim, static_cast<float>(share),
                  averages.values.data + id * dim);
    }
  });
  return Status();
}

#define TWML_INSTANTIATE(Id, W)                                                                    \
  template Status AverageRows<Id, W>(Span<const Id>, Matrix<const W>, const RowAverages&, int64_t, \
                                     double, const ParallelFor&);
TWML_INSTANTIATE(int32_t, float)
TWML_INSTANTIATE(int64_t, float)
TWML_INSTANTIATE(int32_t, Bfloat16)
TWML_INSTANTIATE(int64_t, Bfloat16)
#undef TWML_INSTANTIATE

}  // namespace twml
