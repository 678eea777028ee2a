// Kernels that sum the gradient of a group of entries and update the group's row in one pass,
// compiled once per SIMD level.
#ifndef TWML_CORE_SIMD_GROUP_KERNELS_H_
#define TWML_CORE_SIMD_GROUP_KERNELS_H_

#include <cstdint>

#include "cc/core/update_rules.h"

namespace twml {

// For group u, the sum over k in [splits[u], splits[u + 1]) of values[k] * grad[rows[k]] is the
// gradient of row ids[u] of the weights.
template <class Id>
struct GroupUpdates {
  const Id* ids;
  const int64_t* splits;
  int64_t num_entries;  // of all groups together
  const int32_t* rows;
  const float* values;  // null: all values are 1
  const float* grad;
  float* weights;
  float* const* slots;
  const float* hyper;  // see UpdateRule
};

// Updates the rows of the groups [begin, end).
template <class Id>
using GroupUpdater = void (*)(const GroupUpdates<Id>& groups, int64_t begin, int64_t end);

// Each function returns the kernel for float32 rows of `dim` columns, or null if there is no
// kernel for that width.
struct GroupKernels {
  GroupUpdater<int32_t> (*int32)(UpdateRule rule, int64_t dim);
  GroupUpdater<int64_t> (*int64)(UpdateRule rule, int64_t dim);

  template <class Id>
  GroupUpdater<Id> ForIds(UpdateRule rule, int64_t dim) const {
    if constexpr (sizeof(Id) == 4) {
      return int32(rule, dim);
    } else {
      return int64(rule, dim);
    }
  }
};

}  // namespace twml

#endif  // TWML_CORE_SIMD_GROUP_KERNELS_H_
