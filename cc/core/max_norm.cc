#include "cc/core/max_norm.h"

#include <algorithm>
#include <cmath>

namespace twml {
namespace {

template <class Id>
Status Check(const NormBatch<Id>& batch, int64_t input_dim, const Span<const float>* bias,
             const MaxNormOptions& options, const ParallelFor& parallel_for) {
  TWML_RETURN_IF_ERROR(CheckNormOptions(options.epsilon, options.decay));
  return CheckNormBatch(
      batch, input_dim, bias, "as max_abs has", options.nonfinite,
      [](float v) { return !std::isfinite(v); }, parallel_for);
}

// A maximum does not depend on the order of its arguments, so threads may update it concurrently.
void AtomicMax(float* max_abs, float value) {
  float current;
  __atomic_load(max_abs, &current, __ATOMIC_RELAXED);
  while (current < value && !__atomic_compare_exchange(max_abs, &current, &value, /*weak=*/true,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Groups the entries by feature, because the decay is applied once per feature of the batch.
template <class Id>
void DecayAndUpdateMaxima(const NormBatch<Id>& batch, Span<float> max_abs, float decay,
                          const ParallelFor& parallel_for) {
  const auto update = [&](Id id, const float* values, int64_t n) {
    float largest = -1;
    for (int64_t k = 0; k < n; ++k) {
      const float magnitude = std::abs(values[k]);
      if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
    }
    if (largest >= 0) max_abs[id] = std::max(max_abs[id] * decay, largest);
  };
  ForEachFeature(batch, max_abs.size(), 2, parallel_for, update);
}

template <class Id>
void UpdateMaxima(const NormBatch<Id>& batch, Span<float> max_abs,
                  const ParallelFor& parallel_for) {
  parallel_for(batch.ids.size(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const float magnitude = std::abs(batch.values[k]);
      if (std::isfinite(magnitude)) AtomicMax(&max_abs[batch.ids[k]], magnitude);
    }
  });
}

template <class Id>
void Normalize(const NormBatch<Id>& batch, Span<const float> max_abs, const Span<const float>* bias,
               float epsilon, const ParallelFor& parallel_for, NormOutput out) {
  ApplyNorm(batch, bias, 4, parallel_for, out, [&](Id id, float v) -> Normalized {
    const float m = std::max(max_abs[id], epsilon);
    const bool finite = std::isfinite(v);
    return {finite ? std::clamp(v / m, -1.0f, 1.0f) : 0.0f,
            finite && std::abs(v) <= m ? 1.0f / m : 0.0f};
  });
}

}  // namespace

template <class Id>
Status MaxNorm(const NormBatch<Id>& batch, Span<const float> max_abs, const Span<const float>* bias,
               const MaxNormOptions& options, const ParallelFor& parallel_for, NormOutput out) {
  TWML_RETURN_IF_ERROR(Check(batch, max_abs.size(), bias, options, parallel_for));
  Normalize(batch, max_abs, bias, options.epsilon, parallel_for, out);
  return Status();
}

template <class Id>
Status MaxNormTraining(const NormBatch<Id>& batch, Span<float> max_abs,
                       const Span<const float>* bias, const MaxNormOptions& options,
                       const ParallelFor& parallel_for, NormOutput out) {
  TWML_RETURN_IF_ERROR(Check(batch, max_abs.size(), bias, options, parallel_for));
  if (options.decay < 1) {
    DecayAndUpdateMaxima(batch, max_abs, options.decay, parallel_for);
  } else {
    UpdateMaxima(batch, max_abs, parallel_for);
  }
  Normalize<Id>(batch, max_abs, bias, options.epsilon, parallel_for, out);
  return Status();
}

#define TWML_INSTANTIATE(Id)                                                                       \
  template Status MaxNorm<Id>(const NormBatch<Id>&, Span<const float>, const Span<const float>*,   \
                              const MaxNormOptions&, const ParallelFor&, NormOutput);              \
  template Status MaxNormTraining<Id>(const NormBatch<Id>&, Span<float>, const Span<const float>*, \
                                      const MaxNormOptions&, const ParallelFor&, NormOutput);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
