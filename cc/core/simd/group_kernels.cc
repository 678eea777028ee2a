// This file is compiled once per SIMD level and has the same restrictions as row_kernels.cc.
//
// Groups have few entries, so the cost of one call for the sum, another for the update, and loops
// of unknown length matters. The most common widths, powers of two, therefore have specialized
// kernels.
#include "cc/core/simd/group_kernels.h"

#include "cc/core/simd/lanes.h"
#include "cc/core/simd/update_loops.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

template <int64_t kDim, bool kBinary>
__attribute__((always_inline)) inline void Sum(const float* grad, const int32_t* rows,
                                               const float* values, int64_t n, int64_t readable,
                                               float* out) {
  constexpr int kVectors = kDim / kLanes, kPasses = (kVectors + kMaxBlock - 1) / kMaxBlock;
  constexpr int kBlock = kVectors / kPasses;
  static_assert(kBlock * kPasses * kLanes == kDim);
  for (int64_t c = 0; c < kDim; c += kBlock * kLanes) {
    SumBlock<kBlock, kBinary>(grad + c, kDim, (kBlock - 1) * kLanes, rows, values, n, readable,
                              out + c);
  }
}

template <int64_t kDim, UpdateRule kRule, class Id>
void SumAndUpdate(const GroupUpdates<Id>& groups, int64_t begin, int64_t end) {
  constexpr UpdateRuleInfo kInfo = kUpdateRules[static_cast<int>(kRule)];
  constexpr int64_t kSlotDim = kInfo.rowwise_slots ? 1 : kDim;
  constexpr int64_t kAhead = 8;
  alignas(64) float sum[kDim];
  for (int64_t u = begin; u < end; ++u) {
    if (u + kAhead < end) {
      const int64_t id = groups.ids[u + kAhead];
      PrefetchColumns<kDim>(groups.weights + id * kDim);
      for (int s = 0; s < kInfo.num_slots; ++s) {
        PrefetchColumns<kSlotDim>(groups.slots[s] + id * kSlotDim);
      }
    }
    const int64_t k = groups.splits[u], n = groups.splits[u + 1] - k,
                  readable = groups.num_entries - k;
    if (groups.values == nullptr) {
      Sum<kDim, true>(groups.grad, groups.rows + k, nullptr, n, readable, sum);
    } else {
      Sum<kDim, false>(groups.grad, groups.rows + k, groups.values + k, n, readable, sum);
    }
    const int64_t id = groups.ids[u];
    float* slots[kMaxSlots] = {};
    for (int s = 0; s < kInfo.num_slots; ++s) slots[s] = groups.slots[s] + id * kSlotDim;
    Update<kRule, Float32Row>(groups.weights + id * kDim, slots, sum, kDim, groups.hyper, 0);
  }
}

template <UpdateRule kRule, class Id>
GroupUpdater<Id> UpdaterForDim(int64_t dim) {
  if constexpr (kLanes <= 8) {
    if (dim == 8) return SumAndUpdate<8, kRule, Id>;
  }
  if (dim == 16) return SumAndUpdate<16, kRule, Id>;
  if (dim == 32) return SumAndUpdate<32, kRule, Id>;
  if (dim == 64) return SumAndUpdate<64, kRule, Id>;
  if (dim == 128) return SumAndUpdate<128, kRule, Id>;
  return nullptr;
}

template <class Id>
GroupUpdater<Id> FindUpdater(UpdateRule rule, int64_t dim) {
#define TWML_RULE(Name, ...) UpdaterForDim<UpdateRule::k##Name, Id>,
  constexpr GroupUpdater<Id> (*kUpdatersOfRule[])(int64_t) = {TWML_FOR_EACH_UPDATE_RULE(TWML_RULE)};
#undef TWML_RULE
  return kUpdatersOfRule[static_cast<int>(rule)](dim);
}

}  // namespace

extern const GroupKernels kGroupKernels;
const GroupKernels kGroupKernels = {FindUpdater<int32_t>, FindUpdater<int64_t>};

}  // namespace twml::TWML_SIMD_LEVEL
