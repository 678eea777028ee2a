#include "cc/core/online_standardize.h"

#include <algorithm>
#include <cmath>

namespace twml {
namespace {

template <class Id>
Status Check(const NormBatch<Id>& batch, int64_t input_dim, const Span<const float>* bias,
             const StandardizeOptions& options, const ParallelFor& parallel_for) {
  TWML_RETURN_IF_ERROR(CheckNormOptions(options.epsilon, options.decay));
  if (!(options.clip > 0)) return Invalid("clip must be positive, got ", options.clip);
  return CheckNormBatch(
      batch, input_dim, bias, "as moments has rows", options.nonfinite,
      [](float v) { return std::isinf(v); }, parallel_for);
}

Moments MomentsOf(const float* values, int64_t n) {
  Moments m = {0, 0, 0};
  for (int64_t k = 0; k < n; ++k) {
    if (!std::isfinite(values[k])) continue;
    const double v = values[k], delta = v - m.mean;
    m.count += 1;
    m.mean += delta / m.count;
    m.m2 += delta * (v - m.mean);
  }
  return m;
}

template <class Id>
void Apply(const NormBatch<Id>& batch, Span<const Moments> moments, const Span<const float>* bias,
           const StandardizeOptions& options, const ParallelFor& parallel_for, NormOutput out) {
  ApplyNorm(batch, bias, 8, parallel_for, out, [&](Id id, float v) -> Normalized {
    const Moments& m = moments[id];
    const bool known = std::isfinite(v) && m.count > 0;
    const double sd = known ? std::sqrt(std::max(0.0, m.m2 / m.count)) : 1.0;
    const double scale = 1 / std::max<double>(sd, options.epsilon);
    const double z = known ? (static_cast<double>(v) - m.mean) * scale : 0.0;
    const double clip = options.clip;
    return {static_cast<float>(std::clamp(z, -clip, clip)),
            known && std::abs(z) <= clip ? static_cast<float>(scale) : 0.0f};
  });
}

}  // namespace

Moments MergeMoments(const Moments& a, const Moments& b) {
  const double count = a.count + b.count;
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const double delta = b.mean - a.mean;
  return {count, a.mean + delta * (b.count / count),
          a.m2 + b.m2 + delta * delta * (a.count * (b.count / count))};
}

template <class Id>
Status Standardize(const NormBatch<Id>& batch, Span<const Moments> moments,
                   const Span<const float>* bias, const StandardizeOptions& options,
                   const ParallelFor& parallel_for, NormOutput out) {
  TWML_RETURN_IF_ERROR(Check(batch, moments.size(), bias, options, parallel_for));
  Apply(batch, moments, bias, options, parallel_for, out);
  return Status();
}

template <class Id>
Status StandardizeTraining(const NormBatch<Id>& batch, Span<Moments> moments,
                           const Span<const float>* bias, const StandardizeOptions& options,
                           const ParallelFor& parallel_for, NormOutput out) {
  TWML_RETURN_IF_ERROR(Check(batch, moments.size(), bias, options, parallel_for));
  const auto update = [&](Id id, const float* values, int64_t n) {
    const Moments added = MomentsOf(values, n);
    if (added.count == 0) return;
    Moments& m = moments[id];
    m.count *= options.decay;
    m.m2 *= options.decay;
    m = MergeMoments(m, added);
  };
  ForEachFeature(batch, moments.size(), 5, parallel_for, update);
  Apply<Id>(batch, moments, bias, options, parallel_for, out);
  return Status();
}

#define TWML_INSTANTIATE(Id)                                                                   \
  template Status Standardize<Id>(const NormBatch<Id>&, Span<const Moments>,                   \
                                  const Span<const float>*, const StandardizeOptions&,         \
                                  const ParallelFor&, NormOutput);                             \
  template Status StandardizeTraining<Id>(const NormBatch<Id>&, Span<Moments>,                 \
                                          const Span<const float>*, const StandardizeOptions&, \
                                          const ParallelFor&, NormOutput);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
