// The softmax of a few numbers.
#ifndef TWML_CORE_SCORER_SOFTMAX_H_
#define TWML_CORE_SCORER_SOFTMAX_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/simd_dispatch.h"

namespace twml::scorer {

// y = softmax(scale * x) of n numbers, n > 0. x and y may be the same.
inline void Softmax(float scale, const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = scale * x[i];
  const float largest = *std::max_element(y, y + n);
  for (int64_t i = 0; i < n; ++i) y[i] -= largest;
  GetScoringKernels().activate(Activation::kExponential, y, n, y);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += y[i];
  for (int64_t i = 0; i < n; ++i) y[i] /= sum;
}

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_SOFTMAX_H_
