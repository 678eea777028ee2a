// The update rules for one row, compiled once per SIMD level (see lanes.h). update_formulas.h has
// the formulas for one weight.
#ifndef TWML_CORE_SIMD_UPDATE_LOOPS_H_
#define TWML_CORE_SIMD_UPDATE_LOOPS_H_

#include "cc/core/simd/lanes.h"
#include "cc/core/simd/update_formulas.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

#define TWML_UPDATE_RULE(Name)                                                            \
  template <class Row, class W>                                                           \
  inline void Name(W* weights, float* const* slots, const float* __restrict g, int64_t n, \
                   const float* hyper, uint32_t seed)

TWML_UPDATE_RULE(Sgd) {
  (void)slots;
  const Row w(weights, hyper, seed);
  const SgdStep step(hyper);
  for (int64_t i = 0; i < n; ++i) w.Set(i, step(w.Get(i), g[i]));
}

TWML_UPDATE_RULE(Momentum) {
  const Row w(weights, hyper, seed);
  const MomentumStep step(hyper);
  float* __restrict m = slots[0];
  for (int64_t i = 0; i < n; ++i) w.Set(i, step(w.Get(i), g[i], m[i]));
}

TWML_UPDATE_RULE(Adagrad) {
  const Row w(weights, hyper, seed);
  const AdagradStep step(hyper);
  float* __restrict a = slots[0];
  for (int64_t i = 0; i < n; ++i) w.Set(i, step(w.Get(i), g[i], a[i]));
}

TWML_UPDATE_RULE(RowWiseAdagrad) {
  const Row w(weights, hyper, seed);
  const int64_t whole = n / kLanes * kLanes;
  float squares = 0;
  if (whole > 0) {
    Vec sums = {};
    for (int64_t i = 0; i < whole; i += kLanes) sums = MulAdd(VecAt(g + i), VecAt(g + i), sums);
    for (int lane = 0; lane < kLanes; ++lane) squares += sums[lane];
  }
  for (int64_t i = whole; i < n; ++i) squares = MulAdd(g[i], g[i], squares);
  slots[0][0] += squares / static_cast<float>(n);
  const RowWiseAdagradStep step(hyper, slots[0][0]);
  for (int64_t i = 0; i < n; ++i) w.Set(i, step(w.Get(i), g[i]));
}

TWML_UPDATE_RULE(LazyAdam) {
  const Row w(weights, hyper, seed);
  const LazyAdamStep step(hyper);
  float* __restrict m = slots[0];
  float* __restrict v = slots[1];
  for (int64_t i = 0; i < n; ++i) w.Set(i, step(w.Get(i), g[i], m[i], v[i]));
}

TWML_UPDATE_RULE(Ftrl) {
  const Row w(weights, hyper, seed);
  const FtrlStep step(hyper);
  float* __restrict a = slots[0];
  float* __restrict z = slots[1];
  // There is one loop for each kind of root, because a call of powf prevents vectorization.
  if (step.DecaysOnly()) {
    for (int64_t i = 0; i < n; ++i) w.Set(i, w.Get(i));
  } else if (step.RootIsSquareRoot()) {
    for (int64_t i = 0; i < n; ++i) w.Set(i, step.Step<true>(w.Get(i), g[i], a[i], z[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) w.Set(i, step.Step<false>(w.Get(i), g[i], a[i], z[i]));
  }
}

#undef TWML_UPDATE_RULE

// The UpdateRow function of a rule.
template <UpdateRule kRule, class Row, class W>
inline void Update(W* weights, float* const* slots, const float* __restrict g, int64_t n,
                   const float* hyper, uint32_t seed) {
#define TWML_RULE(Name, ...) \
  if constexpr (kRule == UpdateRule::k##Name) Name<Row>(weights, slots, g, n, hyper, seed);
  TWML_FOR_EACH_UPDATE_RULE(TWML_RULE)
#undef TWML_RULE
}

}  // namespace
}  // namespace twml::TWML_SIMD_LEVEL

#endif  // TWML_CORE_SIMD_UPDATE_LOOPS_H_
