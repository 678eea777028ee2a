// Compiled once per SIMD level, like row_kernels.cc, and under the same restrictions.
//
// A group has few entries: what a call for its sum, another for its update and loops of unknown
// length cost shows. So the widths that are most used, powers of two, have kernels of their own.
#include "cc/core/simd/group_kernels.h"

#include "cc/core/simd/lanes.h"
#include "cc/core/simd/update_formulas.h"

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
void SumAndUpdate(const GroupUpdates<Id>& of, int64_t begin, int64_t end) {
  constexpr UpdateRuleInfo kInfo = kUpdateRules[static_cast<int>(kRule)];
  constexpr int64_t kSlotDim = kInfo.rowwise_slots ? 1 : kDim;
  constexpr int64_t kAhead = 8;
  alignas(64) float sum[kDim];
  for (int64_t u = begin; u < end; ++u) {
    if (u + kAhead < end) {
      const int64_t id = of.ids[u + kAhead];
      PrefetchColumns<kDim>(of.weights + id * kDim);
      for (int s = 0; s < kInfo.num_slots; ++s) {
        PrefetchColumns<kSlotDim>(of.slots[s] + id * kSlotDim);
      }
    }
    const int64_t k = of.splits[u], n = of.splits[u + 1] - k, readable = of.num_entries - k;
    if (of.values == nullptr) {
      Sum<kDim, true>(of.grad, of.rows + k, nullptr, n, readable, sum);
    } else {
      Sum<kDim, false>(of.grad, of.rows + k, of.values + k, n, readable, sum);
    }
    const int64_t id = of.ids[u];
    float* slots[kMaxSlots] = {};
    for (int s = 0; s < kInfo.num_slots; ++s) slots[s] = of.slots[s] + id * kSlotDim;
    Update<kRule, Float32Row>(of.weights + id * kDim, slots, sum, kDim, of.hyper, 0);
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
GroupUpdater<Id> Find(UpdateRule rule, int64_t dim) {
  constexpr GroupUpdater<Id> (*kOfRule[kNumUpdateRules])(int64_t) = {
      UpdaterForDim<UpdateRule::kSgd, Id>,      UpdaterForDim<UpdateRule::kMomentum, Id>,
      UpdaterForDim<UpdateRule::kAdagrad, Id>,  UpdaterForDim<UpdateRule::kRowWiseAdagrad, Id>,
      UpdaterForDim<UpdateRule::kLazyAdam, Id>, UpdaterForDim<UpdateRule::kFtrl, Id>};
  return kOfRule[static_cast<int>(rule)](dim);
}

}  // namespace

extern const GroupKernels kGroupKernels;
const GroupKernels kGroupKernels = {Find<int32_t>, Find<int64_t>};

}  // namespace twml::TWML_SIMD_LEVEL
