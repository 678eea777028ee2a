// Backward and update in one go over groups of entries, compiled once per SIMD level.
#ifndef TWML_CORE_SIMD_GROUP_KERNELS_H_
#define TWML_CORE_SIMD_GROUP_KERNELS_H_

#include <cstdint>

#include "cc/core/update_rules.h"

namespace twml {

// Group u: the sum over k in [splits[u], splits[u + 1]) of values[k] * grad[rows[k]] updates row
// ids[u] of the weights.
template <class Id>
struct GroupUpdates {
  const Id* ids;
  const int64_t* splits;
  int64_t num_entries;  // of all groups
  const int32_t* rows;
  const float* values;  // null: all 1
  const float* grad;
  float* weights;
  float* const* slots;
  const float* hyper;  // see UpdateRule
};

// Does the groups [begin, end).
template <class Id>
using GroupUpdater = void (*)(const GroupUpdates<Id>& of, int64_t begin, int64_t end);

// For rows of `dim` floats of float32 weights; null where there is none for that width.
struct GroupKernels {
  GroupUpdater<int32_t> (*int32)(UpdateRule rule, int64_t dim);
  GroupUpdater<int64_t> (*int64)(UpdateRule rule, int64_t dim);

  template <class Id>
  GroupUpdater<Id> of(UpdateRule rule, int64_t dim) const {
    if constexpr (sizeof(Id) == 4) {
      return int32(rule, dim);
    } else {
      return int64(rule, dim);
    }
  }
};

// Of the level that Kernels() in simd.h chooses.
const GroupKernels& KernelsOfGroups();

}  // namespace twml

#endif  // TWML_CORE_SIMD_GROUP_KERNELS_H_
