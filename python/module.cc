// The module twml_ops._core: functions of cc/core on NumPy arrays, without TensorFlow.
#include <cstdlib>
#include <string>

#include "cc/core/simd_dispatch.h"
#include "cc/core/update_rules.h"
#include "python/bind.h"

namespace twml {
namespace {

// Warns if the kernels do not run at the SIMD level that the environment variable requests.
void WarnAboutSimdRequest() {
  const SimdRequest request = CheckSimdRequest();
  if (request == SimdRequest::kSatisfied) return;
  std::string levels;
  for (const char* level : kSimdLevels)
    levels += (levels.empty() ? "'" : ", '") + std::string(level) + "'";
  const std::string setting = std::string(kSimdVariable) + "='" + std::getenv(kSimdVariable) + "'";
  const std::string problem = request == SimdRequest::kUnknown
                                  ? setting + " is not one of the levels " + levels
                                  : setting + " requests a level that this CPU does not have";
  const std::string message = problem + ": the kernels run at '" + GetRowKernels().level + "'";
  if (PyErr_WarnEx(PyExc_RuntimeWarning, message.c_str(), 1) != 0) throw py::error_already_set();
}

py::typing::Dict<py::str, py::typing::Tuple<int, bool, int>> UpdateRules() {
  py::typing::Dict<py::str, py::typing::Tuple<int, bool, int>> rules;
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
      R"(Returns the SIMD level at which the kernels run.

It is the highest level that the CPU supports. The environment variable TWML_OPS_SIMD can lower it.

Returns:
  'avx512', 'avx2' or 'baseline'.)");
  m.def("update_rules", &twml::UpdateRules,
        R"(Returns the update rules of the optimizers.

Returns:
  For each rule its name and a tuple (num_slots, rowwise_slots, num_hyper): the number of slot
  variables, whether a slot has one item per row instead of one per weight, and the number of
  hyperparameters.)");
  twml::BindSparseLinear(m);
  twml::BindQuantileSketch(m);
  twml::BindTransforms(m);
  twml::BindHashStrings(m);
  twml::BindDelimited(m);
  twml::BindQuantizeRows(m);
  twml::BindTreeSums(m);
  twml::BindPackedEntries(m);
  twml::BindLookups(m);
  twml::BindDynamicLookup(m);
  twml::BindReuseDistances(m);
  twml::BindScorer(m);
}
