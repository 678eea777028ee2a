// Compiled once per SIMD level, like row_kernels.cc, and under the same restrictions.
//
// A group has few entries: what a call for its sum, another for its update and loops of unknown
// length cost shows. So the widths that are most used, powers of two, have kernels of their own.
#include "cc/core/simd/lanes.h"
#include "cc/core/simd/rules.h"
#include "cc/core/simd_groups.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

template <int64_t kFloats>
__attribute__((always_inline)) inline void PrefetchFloats(const float* row) {
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < kFloats; i += kLine) __builtin_prefetch(row + i);
}

template <int kBlock, UpdateRule kRule, class Id>
void SumAndUpdate(const GroupUpdates<Id>& of, int64_t begin, int64_t end) {
  constexpr int64_t kDim = kBlock * kLanes;
  constexpr UpdateRuleInfo kInfo = kUpdateRules[static_cast<int>(kRule)];
  constexpr int64_t kSlotDim = kInfo.rowwise_slots ? 1 : kDim;
  constexpr int64_t kLast = kDim - kLanes;
  constexpr int64_t kAhead = 8;
  alignas(64) float sum[kDim];
  for (int64_t u = begin; u < end; ++u) {
    if (u + kAhead < end) {
      const int64_t id = of.ids[u + kAhead];
      PrefetchFloats<kDim>(of.weights + id * kDim);
      for (int s = 0; s < kInfo.num_slots; ++s) {
        PrefetchFloats<kSlotDim>(of.slots[s] + id * kSlotDim);
      }
    }
    const int64_t k = of.splits[u], n = of.splits[u + 1] - k, readable = of.num_entries - k;
    if (of.values == nullptr) {
      SumBlock<kBlock, true>(of.grad, kDim, kLast, of.rows + k, of.values, n, readable, sum);
    } else {
      SumBlock<kBlock, false>(of.grad, kDim, kLast, of.rows + k, of.values + k, n, readable, sum);
    }
    const int64_t id = of.ids[u];
    float* slots[kMaxSlots] = {};
    for (int s = 0; s < kInfo.num_slots; ++s) slots[s] = of.slots[s] + id * kSlotDim;
    Update<kRule, Float32Row>(of.weights + id * kDim, slots, sum, kDim, of.hyper, 0);
  }
}

template <UpdateRule kRule, class Id>
GroupUpdater<Id> OfWidth(int64_t dim) {
  if (dim == kLanes) return SumAndUpdate<1, kRule, Id>;
  if (dim == 2 * kLanes) return SumAndUpdate<2, kRule, Id>;
  if (dim == 4 * kLanes) return SumAndUpdate<4, kRule, Id>;
  if (dim == 8 * kLanes) return SumAndUpdate<8, kRule, Id>;
  if (dim == kMaxBlock * kLanes) return SumAndUpdate<kMaxBlock, kRule, Id>;
  return nullptr;
}

template <class Id>
GroupUpdater<Id> Find(UpdateRule rule, int64_t dim) {
  switch (rule) {
    case UpdateRule::kSgd:
      return OfWidth<UpdateRule::kSgd, Id>(dim);
    case UpdateRule::kMomentum:
      return OfWidth<UpdateRule::kMomentum, Id>(dim);
    case UpdateRule::kAdagrad:
      return OfWidth<UpdateRule::kAdagrad, Id>(dim);
    case UpdateRule::kRowWiseAdagrad:
      return OfWidth<UpdateRule::kRowWiseAdagrad, Id>(dim);
    case UpdateRule::kLazyAdam:
      return OfWidth<UpdateRule::kLazyAdam, Id>(dim);
    case UpdateRule::kFtrl:
      return OfWidth<UpdateRule::kFtrl, Id>(dim);
  }
  return nullptr;
}

}  // namespace

extern const GroupKernels kGroupKernels;
const GroupKernels kGroupKernels = {Find<int32_t>, Find<int64_t>};

}  // namespace twml::TWML_SIMD_LEVEL
