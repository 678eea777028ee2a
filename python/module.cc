// twml_ops._core: cc/core with NumPy in and out, no TensorFlow.
#include "cc/core/simd.h"
#include "python/bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The kernels of twml_ops on NumPy arrays.";
  m.def(
      "simd_level", [] { return twml::Kernels().level; },
      "The SIMD level the kernels run at: 'avx512', 'avx2' or 'baseline'.");
  twml::BindSparseLinear(m);
  twml::BindQuantileSketch(m);
  twml::BindTransforms(m);
}
