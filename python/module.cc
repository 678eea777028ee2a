// twml_ops._core: cc/core with NumPy in and out, no TensorFlow.
#include <cstdlib>
#include <string>

#include "cc/core/simd_dispatch.h"
#include "cc/core/update_rules.h"
#include "python/bind.h"

namespace twml {
namespace {

// Warns where the kernels do not run at the level that the environment asks for.
void WarnAboutSimdRequest() {
  const SimdRequest request = CheckSimdRequest();
  if (request == SimdRequest::kSatisfied) return;
  std::string levels;
  for (const char* level : kSimdLevels)
    levels += (levels.empty() ? "'" : ", '") + std::string(level) + "'";
  const std::string asked = std::string(kSimdVariable) + "='" + std::getenv(kSimdVariable) + "'";
  const std::string problem = request == SimdRequest::kUnknown
                                  ? asked + " is not one of the levels " + levels
                                  : asked + " asks for a level that this CPU does not have";
  const std::string message = problem + ": the kernels run at '" + GetRowKernels().level + "'";
  if (PyErr_WarnEx(PyExc_RuntimeWarning, message.c_str(), 1) != 0) throw py::error_already_set();
}

py::dict UpdateRules() {
  py::dict rules;
  for (const UpdateRuleInfo& rule : kUpdateRules) {
    rules[py::str(rule.name.data(), rule.name.size())] =
        py::make_tuple(rule.num_slots, rule.rowwise_slots, rule.num_hyper);
  }
  return rules;
}

}  // namespace
}  // namespace twml

PYBIND11_MODULE(_core, m) {
  m.doc() = "The kernels of twml_ops on NumPy arrays.";
  twml::WarnAboutSimdRequest();
  m.def(
      "simd_level", [] { return twml::GetRowKernels().level; },
      "The SIMD level the kernels run at: 'avx512', 'avx2' or 'baseline'.");
  m.def("update_rules", &twml::UpdateRules,
        "The optimizers' rules by name: (num_slots, rowwise_slots, num_hyper) of each.");
  twml::BindSparseLinear(m);
  twml::BindQuantileSketch(m);
  twml::BindTransforms(m);
}
