// The formulas of the update rules for one weight. CPUs and GPUs share this header. It is compiled
// once per SIMD level (see lanes.h), and once for GPUs, where TWML_SIMD_LEVEL is `cuda`.
#ifndef TWML_CORE_SIMD_UPDATE_FORMULAS_H_
#define TWML_CORE_SIMD_UPDATE_FORMULAS_H_

#include <math.h>

#include <cstdint>

#include "cc/core/bfloat16.h"
#include "cc/core/update_rules.h"

// Every function is inlined, so none of them has a copy that files of several SIMD levels share.
#if defined(__CUDACC__)
#define TWML_INLINE __host__ __device__ __forceinline__
#else
#define TWML_INLINE inline __attribute__((always_inline))
#endif

namespace twml::TWML_SIMD_LEVEL {
namespace {

// a * b + c, rounded once if the SIMD level supports it. All kernels call this function, or the one
// of lanes.h for vectors, where a product and a sum are rounded once. With -ffp-contract=off no
// compiler fuses others, so the bits depend on the level alone.
TWML_INLINE float MulAdd(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(TWML_CUDA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// The square root, correctly rounded. Clang compiles sqrtf to an approximation for GPUs.
TWML_INLINE float SquareRoot(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return sqrtf(x);
#endif
}

TWML_INLINE float ToFloat(float w) { return w; }
TWML_INLINE float ToFloat(Bfloat16 w) {
  const uint32_t bits = static_cast<uint32_t>(w.bits) << 16;
  float out;
  __builtin_memcpy(&out, &bits, sizeof(out));
  return out;
}

// 16 random bits of a column: a hash (the finalizer of MurmurHash3) of the row's seed and the
// column.
constexpr uint32_t kOfColumn = 0x9e3779b9u;
TWML_INLINE uint32_t RandomBits(uint32_t seed, int64_t column) {
  uint32_t random = seed + static_cast<uint32_t>(column) * kOfColumn;
  random = (random ^ random >> 16) * 0x85ebca6bu;
  random = (random ^ random >> 13) * 0xc2b2ae35u;
  return random >> 16;
}

// The weights of one row during an update, from column `first` on. Get returns the decayed weight
// of a column, and Set stores a new one.
class Float32Row {
 public:
  TWML_INLINE Float32Row(float* w, const float* hyper, uint32_t, int64_t = 0)
      : w_(w), decay_(hyper[1]) {}
  TWML_INLINE float Get(int64_t i) const {
    return decay_ == 0 ? w_[i] : MulAdd(-decay_, w_[i], w_[i]);
  }
  TWML_INLINE void Set(int64_t i, float w) const { w_[i] = w; }

 private:
  float* __restrict w_;
  float decay_;
};

// Set uses stochastic rounding: it rounds up with the probability of the truncated fraction, so
// that steps smaller than the spacing of bfloat16 still change the mean of the weights.
class Bfloat16Row {
 public:
  TWML_INLINE Bfloat16Row(Bfloat16* w, const float* hyper, uint32_t seed, int64_t first = 0)
      : w_(w), decay_(hyper[1]), seed_(seed + static_cast<uint32_t>(first) * kOfColumn) {}
  TWML_INLINE float Get(int64_t i) const {
    const float w = ToFloat(w_[i]);
    return decay_ == 0 ? w : MulAdd(-decay_, w, w);
  }
  TWML_INLINE void Set(int64_t i, float w) const {
    uint32_t bits;
    __builtin_memcpy(&bits, &w, sizeof(bits));
    const uint32_t rounded = (bits + RandomBits(seed_, i)) >> 16;
    w_[i].bits = static_cast<uint16_t>(w == w ? rounded : bits >> 16 | 0x40);
  }

 private:
  Bfloat16* __restrict w_;
  float decay_;
  uint32_t seed_;
};

// Each step returns the new value of a weight w with the gradient g, and updates its slots.
// `hyper` is described at UpdateRule.
struct SgdStep {
  float lr;
  TWML_INLINE explicit SgdStep(const float* hyper) : lr(hyper[0]) {}
  TWML_INLINE float operator()(float w, float g) const { return MulAdd(-lr, g, w); }
};

struct MomentumStep {
  float lr, mu;
  bool nesterov;
  TWML_INLINE explicit MomentumStep(const float* hyper)
      : lr(hyper[0]), mu(hyper[2]), nesterov(hyper[3] != 0) {}
  TWML_INLINE float operator()(float w, float g, float& m) const {
    const float step = -lr * g;
    m = MulAdd(mu, m, step);
    return w + (nesterov ? MulAdd(mu, m, step) : m);
  }
};

struct AdagradStep {
  float lr, eps;
  TWML_INLINE explicit AdagradStep(const float* hyper) : lr(hyper[0]), eps(hyper[2]) {}
  TWML_INLINE float operator()(float w, float g, float& a) const {
    a = MulAdd(g, g, a);
    return w - lr * g / SquareRoot(a + eps);
  }
};

// The step of all weights of a row, once the row's slot `a` has been advanced.
struct RowWiseAdagradStep {
  float step;
  TWML_INLINE RowWiseAdagradStep(const float* hyper, float a)
      : step(hyper[0] / SquareRoot(a + hyper[2])) {}
  TWML_INLINE float operator()(float w, float g) const { return MulAdd(-step, g, w); }
};

struct LazyAdamStep {
  float lr, b1, b2, eps;
  TWML_INLINE explicit LazyAdamStep(const float* hyper)
      : lr(hyper[0]), b1(1 - hyper[2]), b2(1 - hyper[3]), eps(hyper[4]) {}
  TWML_INLINE float operator()(float w, float g, float& m, float& v) const {
    m = MulAdd(g - m, b1, m);
    v = MulAdd(MulAdd(g, g, -v), b2, v);
    return w - lr * m / (SquareRoot(v) + eps);
  }
};

struct FtrlStep {
  float lr, power, l1, l2, shrink;
  TWML_INLINE explicit FtrlStep(const float* hyper)
      : lr(hyper[0]), power(-hyper[2]), l1(hyper[3]), l2(hyper[4]), shrink(hyper[5]) {}
  // Whether the rate is so small that only the decay changes a row.
  TWML_INLINE bool DecaysOnly() const { return fabsf(lr) < kMinFtrlRate; }
  // Whether Root may be SquareRoot, without a call of powf.
  TWML_INLINE bool RootIsSquareRoot() const { return power == 0.5f; }
  template <bool kSquareRoot>
  TWML_INLINE float Root(float x) const {
    return kSquareRoot ? SquareRoot(x) : powf(x, power);
  }
  template <bool kSquareRoot>
  TWML_INLINE float Step(float w, float g, float& a, float& z) const {
    const float sum = MulAdd(g, g, a);
    const float before = Root<kSquareRoot>(a), after = Root<kSquareRoot>(sum);
    z += MulAdd((before - after) / lr, w, MulAdd(2 * shrink, w, g));
    const float clipped = z > l1 ? l1 : z < -l1 ? -l1 : z;
    const float scale = after / lr + 2 * l2;
    const float next = (clipped - z) / scale;
    a = sum;
    return scale == 0 ? w : next;
  }
};

}  // namespace
}  // namespace twml::TWML_SIMD_LEVEL

#endif  // TWML_CORE_SIMD_UPDATE_FORMULAS_H_
