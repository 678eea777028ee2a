// The formulas of the update rules for one row, compiled once per SIMD level (see lanes.h).
#ifndef TWML_CORE_SIMD_UPDATE_FORMULAS_H_
#define TWML_CORE_SIMD_UPDATE_FORMULAS_H_

#include <math.h>

#include "cc/core/simd/lanes.h"

namespace twml::TWML_SIMD_LEVEL {
namespace {

// a * b + c, rounded once if the SIMD level supports it. The formulas call this function
// explicitly, because the compiler's own contractions differ between the places where a rule is
// inlined, and the bits of the result with them.
inline float MulAdd(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// The weights of one row during an update. Get returns the decayed weight, Set stores a new one.
class Float32Row {
 public:
  Float32Row(float* w, const float* hyper, uint32_t) : w_(w), decay_(hyper[1]) {}
  float Get(int64_t i) const { return decay_ == 0 ? w_[i] : MulAdd(-decay_, w_[i], w_[i]); }
  void Set(int64_t i, float w) const { w_[i] = w; }

 private:
  float* __restrict w_;
  float decay_;
};

// Set uses stochastic rounding: it rounds up with the probability of the truncated fraction, so
// that steps smaller than the spacing of bfloat16 still change the mean of the weights. The random
// bits are a hash (the finalizer of MurmurHash3) of the row's seed and the column.
class Bfloat16Row {
 public:
  Bfloat16Row(Bfloat16* w, const float* hyper, uint32_t seed)
      : w_(w), decay_(hyper[1]), seed_(seed) {}
  float Get(int64_t i) const {
    const float w = ToFloat(w_[i]);
    return decay_ == 0 ? w : MulAdd(-decay_, w, w);
  }
  void Set(int64_t i, float w) const {
    uint32_t random = seed_ + static_cast<uint32_t>(i) * 0x9e3779b9u;
    random = (random ^ random >> 16) * 0x85ebca6bu;
    random = (random ^ random >> 13) * 0xc2b2ae35u;
    uint32_t bits;
    __builtin_memcpy(&bits, &w, sizeof(bits));
    const uint32_t rounded = (bits + (random >> 16)) >> 16;
    w_[i].bits = static_cast<uint16_t>(w == w ? rounded : bits >> 16 | 0x40);
  }

 private:
  Bfloat16* __restrict w_;
  float decay_;
  uint32_t seed_;
};

#define TWML_UPDATE_RULE(Name)                                                            \
  template <class Row, class W>                                                           \
  inline void Name(W* weights, float* const* slots, const float* __restrict g, int64_t n, \
                   const float* hyper, uint32_t seed)

TWML_UPDATE_RULE(Sgd) {
  (void)slots;
  const Row w(weights, hyper, seed);
  const float lr = hyper[0];
  for (int64_t i = 0; i < n; ++i) w.Set(i, MulAdd(-lr, g[i], w.Get(i)));
}

TWML_UPDATE_RULE(Momentum) {
  const Row w(weights, hyper, seed);
  const float lr = hyper[0], mu = hyper[2];
  const bool nesterov = hyper[3] != 0;
  float* __restrict m = slots[0];
  for (int64_t i = 0; i < n; ++i) {
    const float step = -lr * g[i];
    m[i] = MulAdd(mu, m[i], step);
    w.Set(i, w.Get(i) + (nesterov ? MulAdd(mu, m[i], step) : m[i]));
  }
}

TWML_UPDATE_RULE(Adagrad) {
  const Row w(weights, hyper, seed);
  const float lr = hyper[0], eps = hyper[2];
  float* __restrict a = slots[0];
  for (int64_t i = 0; i < n; ++i) {
    a[i] = MulAdd(g[i], g[i], a[i]);
    w.Set(i, w.Get(i) - lr * g[i] / sqrtf(a[i] + eps));
  }
}

TWML_UPDATE_RULE(RowWiseAdagrad) {
  const Row w(weights, hyper, seed);
  const int64_t whole = n / kLanes * kLanes;
  float squares = 0;
  if (whole > 0) {
    Vec sums = {};
    for (int64_t i = 0; i < whole; i += kLanes) sums += VecAt(g + i) * VecAt(g + i);
    for (int lane = 0; lane < kLanes; ++lane) squares += sums[lane];
  }
  for (int64_t i = whole; i < n; ++i) squares = MulAdd(g[i], g[i], squares);
  slots[0][0] += squares / static_cast<float>(n);
  const float step = hyper[0] / sqrtf(slots[0][0] + hyper[2]);
  for (int64_t i = 0; i < n; ++i) w.Set(i, MulAdd(-step, g[i], w.Get(i)));
}

TWML_UPDATE_RULE(LazyAdam) {
  const Row w(weights, hyper, seed);
  const float lr = hyper[0], b1 = 1 - hyper[2], b2 = 1 - hyper[3], eps = hyper[4];
  float* __restrict m = slots[0];
  float* __restrict v = slots[1];
  for (int64_t i = 0; i < n; ++i) {
    m[i] = MulAdd(g[i] - m[i], b1, m[i]);
    v[i] = MulAdd(MulAdd(g[i], g[i], -v[i]), b2, v[i]);
    w.Set(i, w.Get(i) - lr * m[i] / (sqrtf(v[i]) + eps));
  }
}

TWML_UPDATE_RULE(Ftrl) {
  const Row w(weights, hyper, seed);
  const float lr = hyper[0], power = -hyper[2], l1 = hyper[3], l2 = hyper[4], shrink = hyper[5];
  float* __restrict a = slots[0];
  float* __restrict z = slots[1];
  if (fabsf(lr) < kMinFtrlRate) {
    for (int64_t i = 0; i < n; ++i) w.Set(i, w.Get(i));
    return;
  }
  // There is one loop for each kind of root, because a call of powf prevents vectorization.
  const auto update = [=](auto root) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; ++i) {
      const float wi = w.Get(i);
      const float sum = MulAdd(g[i], g[i], a[i]);
      const float before = root(a[i]), after = root(sum);
      const float zi = z[i] + MulAdd((before - after) / lr, wi, MulAdd(2 * shrink, wi, g[i]));
      const float clipped = zi > l1 ? l1 : zi < -l1 ? -l1 : zi;
      const float scale = after / lr + 2 * l2;
      const float next = (clipped - zi) / scale;
      w.Set(i, scale == 0 ? wi : next);
      z[i] = zi;
      a[i] = sum;
    }
  };
  if (power == 0.5f) {
    update([](float x) __attribute__((always_inline)) { return sqrtf(x); });
  } else {
    update([power](float x) __attribute__((always_inline)) { return powf(x, power); });
  }
}

#undef TWML_UPDATE_RULE

// The UpdateRow function of a rule.
template <UpdateRule kRule, class Row, class W>
inline void Update(W* weights, float* const* slots, const float* __restrict g, int64_t n,
                   const float* hyper, uint32_t seed) {
  if constexpr (kRule == UpdateRule::kSgd) {
    Sgd<Row>(weights, slots, g, n, hyper, seed);
  } else if constexpr (kRule == UpdateRule::kMomentum) {
    Momentum<Row>(weights, slots, g, n, hyper, seed);
  } else if constexpr (kRule == UpdateRule::kAdagrad) {
    Adagrad<Row>(weights, slots, g, n, hyper, seed);
  } else if constexpr (kRule == UpdateRule::kRowWiseAdagrad) {
    RowWiseAdagrad<Row>(weights, slots, g, n, hyper, seed);
  } else if constexpr (kRule == UpdateRule::kLazyAdam) {
    LazyAdam<Row>(weights, slots, g, n, hyper, seed);
  } else {
    static_assert(kRule == UpdateRule::kFtrl);
    Ftrl<Row>(weights, slots, g, n, hyper, seed);
  }
}

}  // namespace
}  // namespace twml::TWML_SIMD_LEVEL

#endif  // TWML_CORE_SIMD_UPDATE_FORMULAS_H_
