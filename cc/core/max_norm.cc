#include "cc/core/max_norm.h"

#include <algorithm>
#include <cmath>

#include "cc/core/csr.h"
#include "cc/core/first_position.h"
#include "cc/core/group_by_id.h"

namespace twml {
namespace {

Status CheckFinite(Span<const float> values, const ParallelFor& parallel_for) {
  FirstPosition bad;
  parallel_for(values.size(), 1, [&](int64_t begin, int64_t end) {
    bool finite = true;
    for (int64_t k = begin; k < end; ++k) finite &= std::isfinite(values[k]);
    if (finite) return;
    int64_t k = begin;
    while (std::isfinite(values[k])) ++k;
    bad.Offer(k);
  });
  if (!bad.found()) return Status();
  return Invalid("values[", bad.value(), "] = ", values[bad.value()], " is not finite");
}

template <class Id>
Status Check(const MaxNormBatch<Id>& batch, int64_t input_dim, const Span<const float>* bias,
             const MaxNormOptions& options, const ParallelFor& parallel_for) {
  if (!std::isnormal(options.epsilon) || options.epsilon < 0) {
    return Invalid("epsilon must be a positive normal number, got ", options.epsilon);
  }
  if (!(options.decay > 0 && options.decay <= 1)) {
    return Invalid("decay must be in (0, 1], got ", options.decay);
  }
  if (batch.values.size() != batch.ids.size()) {
    return Invalid("values must have ", batch.ids.size(), " items, one for each id, got ",
                   batch.values.size());
  }
  if (bias != nullptr && bias->size() != input_dim) {
    return Invalid("bias must have ", input_dim, " items, as max_abs has, got ", bias->size());
  }
  TWML_RETURN_IF_ERROR(CheckIds(batch.ids, input_dim, parallel_for));
  if (options.nonfinite == NonFinite::kZero) return Status();
  return CheckFinite(batch.values, parallel_for);
}

// A maximum does not depend on the order it is taken in, so the threads may race for it.
void RaiseTo(float* max_abs, float value) {
  float seen;
  __atomic_load(max_abs, &seen, __ATOMIC_RELAXED);
  while (seen < value && !__atomic_compare_exchange(max_abs, &seen, &value, /*weak=*/true,
                                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Once for each feature of the batch, so it takes the entries by feature.
template <class Id>
void DecayAndRaise(const MaxNormBatch<Id>& batch, Span<float> max_abs, float decay,
                   const ParallelFor& parallel_for) {
  const auto groups =
      GroupById<Id, int64_t>(batch.ids, batch.values, {}, max_abs.size(), parallel_for);
  const int64_t cost = 10 + 2 * batch.ids.size() / std::max<int64_t>(1, groups.num_groups);
  parallel_for(groups.num_groups, cost, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      float largest = -1;
      for (int64_t k = groups.splits[u]; k < groups.splits[u + 1]; ++k) {
        const float magnitude = std::abs(groups.values[k]);
        if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
      }
      float& m = max_abs[groups.ids[u]];
      if (largest >= 0) m = std::max(m * decay, largest);
    }
  });
}

template <class Id>
void Normalize(const MaxNormBatch<Id>& batch, Span<const float> max_abs,
               const Span<const float>* bias, float epsilon, const ParallelFor& parallel_for,
               MaxNormOut out) {
  const float* b = bias == nullptr ? nullptr : bias->data();
  parallel_for(batch.ids.size(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const Id id = batch.ids[k];
      const float v = batch.values[k];
      const float m = std::max(max_abs[id], epsilon);
      const bool finite = std::isfinite(v);
      const float y = finite ? std::clamp(v / m, -1.0f, 1.0f) : 0.0f;
      out.out[k] = b == nullptr ? y : y + b[id];
      out.scale[k] = finite && std::abs(v) <= m ? 1.0f / m : 0.0f;
    }
  });
}

}  // namespace

template <class Id>
Status MaxNorm(const MaxNormBatch<Id>& batch, Span<const float> max_abs,
               const Span<const float>* bias, const MaxNormOptions& options,
               const ParallelFor& parallel_for, MaxNormOut out) {
  TWML_RETURN_IF_ERROR(Check(batch, max_abs.size(), bias, options, parallel_for));
  Normalize(batch, max_abs, bias, options.epsilon, parallel_for, out);
  return Status();
}

template <class Id>
Status MaxNormTraining(const MaxNormBatch<Id>& batch, Span<float> max_abs,
                       const Span<const float>* bias, const MaxNormOptions& options,
                       const ParallelFor& parallel_for, MaxNormOut out) {
  TWML_RETURN_IF_ERROR(Check(batch, max_abs.size(), bias, options, parallel_for));
  if (options.decay < 1) {
    DecayAndRaise(batch, max_abs, options.decay, parallel_for);
    Normalize<Id>(batch, max_abs, bias, options.epsilon, parallel_for, out);
    return Status();
  }
  parallel_for(batch.ids.size(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const float magnitude = std::abs(batch.values[k]);
      if (std::isfinite(magnitude)) RaiseTo(&max_abs[batch.ids[k]], magnitude);
    }
  });
  Normalize<Id>(batch, max_abs, bias, options.epsilon, parallel_for, out);
  return Status();
}

#define TWML_INSTANTIATE(Id)                                                                       \
  template Status MaxNorm<Id>(const MaxNormBatch<Id>&, Span<const float>,                          \
                              const Span<const float>*, const MaxNormOptions&, const ParallelFor&, \
                              MaxNormOut);                                                         \
  template Status MaxNormTraining<Id>(const MaxNormBatch<Id>&, Span<float>,                        \
                                      const Span<const float>*, const MaxNormOptions&,             \
                                      const ParallelFor&, MaxNormOut);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
