// Shared by the running normalizations max_norm and online_standardize: batches, validation, loops.
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

// How invalid values are handled: the call fails, or the value is treated as 0 (y = b). An invalid
// value never enters a feature's state.
enum class NonFinitePolicy { kError, kZero };

// One value per id. The ids are in [0, input_dim), in any order, and may repeat. `groups` is the
// result of GroupIds for them, or null.
template <class Id>
struct NormBatch {
  Span<const Id> ids;
  Span<const float> values;
  const GroupedBatch<Id>* groups = nullptr;
};

// out[k] is the normalized value. scale[k] = d out[k] / d values[k], where the feature's state is
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

// is_bad(value) says whether a value is invalid. state_size describes input_dim in messages, for
// example "as max_abs has".
template <class Id, class IsBad>
Status CheckNormBatch(const NormBatch<Id>& batch, int64_t input_dim, const Span<const float>* bias,
                      const char* state_size, NonFinitePolicy nonfinite, IsBad is_bad,
                      const ParallelFor& parallel_for) {
  if (batch.values.size() != batch.ids.size()) {
    return Invalid("values must have ", batch.ids.size(), " items, one for each id, got ",
                   batch.values.size());
  }
  if (bias != nullptr && bias->size() != input_dim) {
    return Invalid("bias must have ", input_dim, " items, ", state_size, ", got ", bias->size());
  }
  TWML_RETURN_IF_ERROR(CheckIds(batch.ids, input_dim, parallel_for));
  if (batch.groups != nullptr) {
    TWML_RETURN_IF_ERROR(CheckGroupedIds(*batch.groups, batch.ids, input_dim, parallel_for));
  }
  if (nonfinite == NonFinitePolicy::kZero) return Status();
  FirstPosition bad;
  parallel_for(batch.values.size(), 1, [&](int64_t begin, int64_t end) {
    bool valid = true;  // no early exit, which lets the compiler vectorize
    for (int64_t k = begin; k < end; ++k) valid &= !is_bad(batch.values[k]);
    if (valid) return;
    int64_t k = begin;
    while (!is_bad(batch.values[k])) ++k;
    bad.Record(k);
  });
  if (!bad.found()) return Status();
  return Invalid("values[", bad.value(), "] = ", batch.values[bad.value()], " is not finite");
}

// Calls body(id, values, n) once for each feature of the batch, with its values in their order.
template <class Id, class Body>
void ForEachFeature(const NormBatch<Id>& batch, int64_t input_dim, int64_t cost_per_value,
                    const ParallelFor& parallel_for, Body body) {
  const auto run = [&](const auto& groups, const float* values) {
    const int64_t mean = batch.ids.size() / std::max<int64_t>(1, groups.num_groups);
    parallel_for(groups.num_groups, cost_per_value * (4 + mean), [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        const int64_t first = groups.splits[u];
        body(groups.ids[u], values + first, groups.splits[u + 1] - first);
      }
    });
  };
  if (batch.groups == nullptr) {
    const auto groups =
        GroupById<Id, int64_t>(batch.ids, batch.values, {}, input_dim, parallel_for);
    return run(groups, groups.values.data());
  }
  std::visit(
      [&](const auto& groups) {
        const Scratch<float> values(batch.ids.size());
        parallel_for(batch.ids.size(), 2, [&](int64_t begin, int64_t end) {
          for (int64_t k = begin; k < end; ++k) values[k] = batch.values[groups.rows[k]];
        });
        run(groups, values.data());
      },
      batch.groups->groups);
}

struct Normalized {
  float y, scale;
};

// Applies normalize(id, value) to each entry and adds the bias of its feature.
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
