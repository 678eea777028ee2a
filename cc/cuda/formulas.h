// The formulas of cc/core/simd, compiled for GPUs. Products and sums are rounded as on CPUs with
// fused multiply-add, so the compiler must not contract any others (-ffp-contract=off).
#ifndef TWML_CUDA_FORMULAS_H_
#define TWML_CUDA_FORMULAS_H_

#include "cc/cuda/platform.h"

#define TWML_SIMD_LEVEL cuda
#define TWML_CUDA 1
#include "cc/core/simd/update_formulas.h"

#endif  // TWML_CUDA_FORMULAS_H_
