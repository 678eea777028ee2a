// What the running normalizations (max_norm, online_standardize) share: batches, checks, the loops.
#ifndef TWML_CORE_NORMALIZATION_H_
#define TWML_CORE_NORMALIZATION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cc/core/csr.h"
#include "cc/core/first_position.h"
#include "cc/core/group_by_id.h"
#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// What becomes of a value that may not be: the batch is refused, or the value counts as 0 (y = b).
// It never enters what is known of a feature.
enum class NonFinitePolicy { kError, kZero };

// One value an id. ids in [0, input_dim), in any order and any number of times.
template <class Id>
struct NormBatch {
  Span<const Id> ids;
  Span<const float> values;
};

// out[k]: the normalized value. scale[k] = d out[k] / d values[k], what is known of the feature
// taken as constant.
struct NormOutput {
  float* out;
  float* scale;
};

inline Status CheckNormOptions(float epsilon, double decay) {
  if (!std::isnormal(epsilon) || epsilon < 0) {
    return Invalid("epsilon must be a positive normal number, got ", epsilon);
  }
  if (!(decay > 0 && decay <= 1)) return Invalid("decay must be in (0, 1], got ", decay);
  return Status();
}

// is_bad(value): whether kError refuses it. as_state_has: "as max_abs has", for the message.
template <class Id, class IsBad>
Status CheckNormBatch(const NormBatch<Id>& batch, int64_t input_dim, const Span<const float>* bias,
                      const char* as_state_has, NonFinitePolicy nonfinite, IsBad is_bad,
                      const ParallelFor& parallel_for) {
  if (batch.values.size() != batch.ids.size()) {
    return Invalid("values must have ", batch.ids.size(), " items, one for each id, got ",
                   batch.values.size());
  }
  if (bias != nullptr && bias->size() != input_dim) {
    return Invalid("bias must have ", input_dim, " items, ", as_state_has, ", got ", bias->size());
  }
  TWML_RETURN_IF_ERROR(CheckIds(batch.ids, input_dim, parallel_for));
  if (nonfinite == NonFinitePolicy::kZero) return Status();
  FirstPosition bad;
  parallel_for(batch.values.size(), 1, [&](int64_t begin, int64_t end) {
    bool fine = true;  // of all, so that it becomes a vector operation
    for (int64_t k = begin; k < end; ++k) fine &= !is_bad(batch.values[k]);
    if (fine) return;
    int64_t k = begin;
    while (!is_bad(batch.values[k])) ++k;
    bad.Record(k);
  });
  if (!bad.found()) return Status();
  return Invalid("values[", bad.value(), "] = ", batch.values[bad.value()], " is not finite");
}

// body(id, values, n): once for each feature of the batch, with its values in their order.
template <class Id, class Body>
void ForEachFeature(const NormBatch<Id>& batch, int64_t input_dim, int64_t cost_per_value,
                    const ParallelFor& parallel_for, Body body) {
  const auto groups = GroupById<Id, int64_t>(batch.ids, batch.values, {}, input_dim, parallel_for);
  const int64_t mean = batch.ids.size() / std::max<int64_t>(1, groups.num_groups);
  parallel_for(groups.num_groups, cost_per_value * (4 + mean), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = groups.splits[u];
      body(groups.ids[u], groups.values.data() + first, groups.splits[u + 1] - first);
    }
  });
}

struct Normalized {
  float y, scale;
};

// normalize(id, value) for each entry, and the bias of its feature on top.
template <class Id, class Normalize>
void ApplyNorm(const NormBatch<Id>& batch, const Span<const float>* bias, int64_t cost,
               const ParallelFor& parallel_for, NormOutput out, Normalize normalize) {
  const float* b = bias == nullptr ? nullptr : bias->data();
  parallel_for(batch.ids.size(), cost, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const Id id = batch.ids[k];
      const Normalized to = normalize(id, batch.values[k]);
      out.out[k] = b == nullptr ? to.y : to.y + b[id];
      out.scale[k] = to.scale;
    }
  });
}

}  // namespace twml

#endif  // TWML_CORE_NORMALIZATION_H_
