// What the sources of the _core module share.
#ifndef TWML_PYTHON_BIND_H_
#define TWML_PYTHON_BIND_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

namespace py = pybind11;

// C-contiguous arrays; another dtype or layout is converted on the way in.
template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

inline void RaiseIfError(const Status& s) {
  if (!s.ok()) throw py::value_error(s.message());
}

// `object` as an array of T. Refuses what a conversion would change beyond rounding, so a batch of
// fractional ids is an error and not another batch.
template <class T>
Array<T> As(const py::object& object, const char* name) {
  const py::array a = py::array::ensure(object);  // clears the error of what is no array at all
  const char kind = a ? a.dtype().kind() : 'O';
  const bool integer = kind == 'i' || kind == 'u';
  const bool fits = std::is_integral_v<T> ? integer : integer || kind == 'f';
  if (!fits && !(a && kind == 'f' && a.size() == 0)) {
    RaiseIfError(Invalid(name, " must be an array of ",
                         std::is_integral_v<T> ? "integers" : "real numbers", ", got ",
                         a ? py::str(a.dtype()).cast<std::string>() : "no array"));
  }
  return Array<T>::ensure(a);
}

inline void RequireRank(const py::array& a, int rank, const char* name) {
  if (a.ndim() == rank) return;
  RaiseIfError(Invalid(name, " must have ", rank, " dimensions, got ", a.ndim()));
}

template <class T>
Span<const T> SpanOf(const Array<T>& a) {
  return {a.data(), static_cast<int64_t>(a.size())};
}

// A NumPy array that takes over the vector's memory.
template <class T>
py::array_t<T> ToArray(std::vector<T> v, std::vector<py::ssize_t> shape = {}) {
  auto* kept = new std::vector<T>(std::move(v));
  py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  if (shape.empty()) shape = {static_cast<py::ssize_t>(kept->size())};
  return py::array_t<T>(shape, kept->data(), owner);
}

void BindSparseLinear(py::module_& m);
void BindQuantileSketch(py::module_& m);
void BindTransforms(py::module_& m);

}  // namespace twml

#endif  // TWML_PYTHON_BIND_H_
