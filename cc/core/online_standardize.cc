#include "cc/core/online_standardize.h"

#include <algorithm>
#include <cmath>

#include "cc/core/csr.h"
#include "cc/core/first_position.h"
#include "cc/core/group_by_id.h"

namespace twml {
namespace {

template <class Id>
Status Check(const MaxNormBatch<Id>& batch, int64_t input_dim, const Span<const float>* bias,
             const StandardizeOptions& options, const ParallelFor& parallel_for) {
  if (!std::isnormal(options.epsilon) || options.epsilon < 0) {
    return Invalid("epsilon must be a positive normal number, got ", options.epsilon);
  }
  if (!(options.clip > 0)) return Invalid("clip must be positive, got ", options.clip);
  if (!(options.decay > 0 && options.decay <= 1)) {
    return Invalid("decay must be in (0, 1], got ", options.decay);
  }
  if (batch.values.size() != batch.ids.size()) {
    return Invalid("values must have ", batch.ids.size(), " items, one for each id, got ",
                   batch.values.size());
  }
  if (bias != nullptr && bias->size() != input_dim) {
    return Invalid("bias must have ", input_dim, " items, as moments has rows, got ", bias->size());
  }
  TWML_RETURN_IF_ERROR(CheckIds(batch.ids, input_dim, parallel_for));
  if (options.nonfinite == NonFinite::kZero) return Status();
  FirstPosition bad;
  parallel_for(batch.values.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      if (std::isinf(batch.values[k])) return bad.Offer(k);
    }
  });
  if (!bad.found()) return Status();
  return Invalid("values[", bad.value(), "] = ", batch.values[bad.value()], " is not finite");
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
void Apply(const MaxNormBatch<Id>& batch, Span<const Moments> moments,
           const Span<const float>* bias, const StandardizeOptions& options,
           const ParallelFor& parallel_for, MaxNormOut out) {
  const float* b = bias == nullptr ? nullptr : bias->data();
  parallel_for(batch.ids.size(), 8, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const Id id = batch.ids[k];
      const Moments& m = moments[id];
      const float v = batch.values[k];
      const bool known = std::isfinite(v) && m.count > 0;
      const double sd = known ? std::sqrt(std::max(0.0, m.m2 / m.count)) : 1.0;
      const double scale = 1 / std::max<double>(sd, options.epsilon);
      const double z = known ? (static_cast<double>(v) - m.mean) * scale : 0.0;
      const double clip = options.clip;
      const auto y = static_cast<float>(std::clamp(z, -clip, clip));
      out.out[k] = b == nullptr ? y : y + b[id];
      out.scale[k] = known && std::abs(z) <= clip ? static_cast<float>(scale) : 0.0f;
    }
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
Status Standardize(const MaxNormBatch<Id>& batch, Span<const Moments> moments,
                   const Span<const float>* bias, const StandardizeOptions& options,
                   const ParallelFor& parallel_for, MaxNormOut out) {
  TWML_RETURN_IF_ERROR(Check(batch, moments.size(), bias, options, parallel_for));
  Apply(batch, moments, bias, options, parallel_for, out);
  return Status();
}

template <class Id>
Status StandardizeTraining(const MaxNormBatch<Id>& batch, Span<Moments> moments,
                           const Span<const float>* bias, const StandardizeOptions& options,
                           const ParallelFor& parallel_for, MaxNormOut out) {
  TWML_RETURN_IF_ERROR(Check(batch, moments.size(), bias, options, parallel_for));
  const auto groups =
      GroupById<Id, int64_t>(batch.ids, batch.values, {}, moments.size(), parallel_for);
  const int64_t cost = 20 + 5 * batch.ids.size() / std::max<int64_t>(1, groups.num_groups);
  parallel_for(groups.num_groups, cost, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = groups.splits[u];
      const Moments seen = MomentsOf(groups.values.data() + first, groups.splits[u + 1] - first);
      if (seen.count == 0) continue;
      Moments& m = moments[groups.ids[u]];
      m.count *= options.decay;
      m.m2 *= options.decay;
      m = MergeMoments(m, seen);
    }
  });
  Apply<Id>(batch, moments, bias, options, parallel_for, out);
  return Status();
}

#define TWML_INSTANTIATE(Id)                                                                   \
  template Status Standardize<Id>(const MaxNormBatch<Id>&, Span<const Moments>,                \
                                  const Span<const float>*, const StandardizeOptions&,         \
                                  const ParallelFor&, MaxNormOut);                             \
  template Status StandardizeTraining<Id>(const MaxNormBatch<Id>&, Span<Moments>,              \
                                          const Span<const float>*, const StandardizeOptions&, \
                                          const ParallelFor&, MaxNormOut);
TWML_INSTANTIATE(int32_t)
TWML_INSTANTIATE(int64_t)
#undef TWML_INSTANTIATE

}  // namespace twml
