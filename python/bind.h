// Shared by the sources of the _core module: conversion and checks of NumPy arrays.
#ifndef TWML_PYTHON_BIND_H_
#define TWML_PYTHON_BIND_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

namespace py = pybind11;

// Any object. The bindings take array arguments as this type, so that ToArray validates all of
// them. The conversion of pybind11 would parse text as numbers and truncate fractional ids.
class ArrayLike : public py::object {
 public:
  PYBIND11_OBJECT(ArrayLike, py::object, IsAnything)

 private:
  static bool IsAnything(PyObject* object) { return object != nullptr; }
};

// An integer argument. Floats are rejected, even integral ones.
inline py::arg IntArg(const char* name) {
  py::arg argument(name);
  argument.noconvert();
  return argument;
}

inline void RaiseIfError(const Status& s) {
  if (!s.ok()) throw py::value_error(s.message());
}

// A C-contiguous and aligned array in native byte order.
template <class T>
using Array = py::array_t<T, py::array::c_style>;

// Converts with NumPy, to `dtype` if it is given. Throws the errors of NumPy, for example a
// MemoryError.
inline py::array ConvertWithNumPy(const py::handle& object, std::optional<py::dtype> dtype) {
  using Api = py::detail::npy_api;
  const int ensure_array = Api::NPY_ARRAY_ENSUREARRAY_;
  const int flags = ensure_array | Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_ |
                    Api::NPY_ARRAY_FORCECAST_;
  PyObject* const array =
      Api::get().PyArray_FromAny_(object.ptr(), dtype ? dtype->release().ptr() : nullptr, 0, 0,
                                  dtype ? flags : ensure_array, nullptr);
  if (array == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::array>(array);
}

// Converts `object` to an array of any dtype. Returns a null handle if that is not possible.
inline py::array ToAnyArray(const py::handle& object) {
  try {
    return ConvertWithNumPy(object, {});
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
    return py::reinterpret_borrow<py::array>(py::handle());
  }
}

// Raises ValueError if an item of an array of wider integers does not fit into T.
template <class T, class Wide>
void CheckFits(const py::array& array, const char* name) {
  const py::array wide = ConvertWithNumPy(array, py::dtype::of<Wide>());
  const auto* items = static_cast<const Wide*>(wide.data());
  for (py::ssize_t i = 0; i < wide.size(); ++i) {
    if (static_cast<Wide>(static_cast<T>(items[i])) == items[i] &&
        (static_cast<T>(items[i]) < 0) == (items[i] < 0)) {
      continue;
    }
    RaiseIfError(Invalid(name, "[", i, "] = ", items[i], " does not fit into ",
                         std::is_signed_v<T> ? "int" : "uint", 8 * sizeof(T)));
  }
}

// Converts `object` to an array of T. Raises ValueError if the conversion would change numbers
// other than by rounding. Fractional ids, for example, are an error.
template <class T>
Array<T> ToArray(const py::handle& object, const char* name) {
  const py::array a = ToAnyArray(object);
  const char kind = a ? a.dtype().kind() : 'O';
  const bool integer = kind == 'i' || kind == 'u';
  const bool fits = std::is_integral_v<T> ? integer : integer || kind == 'f';
  if (!fits && !(a && kind == 'f' && a.size() == 0)) {
    RaiseIfError(Invalid(name, " must be an array of ",
                         std::is_integral_v<T> ? "integers" : "real numbers", ", got ",
                         a ? py::str(a.dtype()).cast<std::string>() : "no array"));
  }
  if constexpr (std::is_integral_v<T>) {
    // A type that T holds all values of needs no look at the values.
    const auto size = static_cast<size_t>(a.itemsize());
    const bool larger = size > sizeof(T), is_signed = std::is_signed_v<T>;
    if (kind == 'u' && (larger || (is_signed && size == sizeof(T)))) {
      CheckFits<T, uint64_t>(a, name);
    }
    if (kind == 'i' && (larger || !is_signed)) CheckFits<T, int64_t>(a, name);
  }
  return py::reinterpret_steal<Array<T>>(ConvertWithNumPy(a, py::dtype::of<T>()).release());
}

// ToArray, or nothing for None.
template <class T>
std::optional<Array<T>> ToOptionalArray(const std::optional<ArrayLike>& object, const char* name) {
  if (!object) return {};
  return ToArray<T>(*object, name);
}

inline void RequireRank(const py::array& a, int rank, const char* name) {
  if (a.ndim() == rank) return;
  RaiseIfError(Invalid(name, " must have ", rank, " dimensions, got ", a.ndim()));
}

inline std::string ShapeOf(const py::array& a) {
  return py::str(a.attr("shape")).cast<std::string>();
}

// Requires that `a` has one item for each item of `like`.
inline void RequireShapeOf(const py::array& like, const char* like_name, const py::array& a,
                           const char* name) {
  if (std::equal(a.shape(), a.shape() + a.ndim(), like.shape(), like.shape() + like.ndim())) return;
  RaiseIfError(Invalid(name, " must have the shape of ", like_name, ", ", ShapeOf(like), ", got ",
                       ShapeOf(a)));
}

// Requires that an array can be used without a copy, and modified in place if `written` is set.
template <class T>
void RequireUsableInPlace(const py::array& a, const char* name, bool written) {
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(a)) {
    RaiseIfError(Invalid(name, " must be a contiguous ",
                         py::str(py::dtype::of<T>()).cast<std::string>(), " array, got dtype ",
                         py::str(a.dtype()).cast<std::string>()));
  }
  if ((a.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0) {
    RaiseIfError(Invalid(name, " must be aligned in memory, got an unaligned view"));
  }
  if (written && !a.writeable()) {
    RaiseIfError(Invalid(name, " must be writeable, because training modifies it in place"));
  }
}

template <class T>
Span<const T> SpanOf(const Array<T>& a) {
  return {a.data(), static_cast<int64_t>(a.size())};
}

// Moves a vector into a NumPy array without a copy.
template <class T>
py::array_t<T> MoveToArray(std::vector<T> v, std::vector<py::ssize_t> shape = {}) {
  auto* owned = new std::vector<T>(std::move(v));
  py::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  if (shape.empty()) shape = {static_cast<py::ssize_t>(owned->size())};
  return py::array_t<T>(shape, owned->data(), owner);
}

// An array that is used in place. Anything but a NumPy array is a TypeError.
template <class T>
class InPlaceArray : public py::array {
 public:
  PYBIND11_OBJECT(InPlaceArray, py::array, IsArray)

 private:
  static bool IsArray(PyObject* object) {
    return py::detail::npy_api::get().PyArray_Check_(object);
  }
};

// Return types, which pybind11 shows in signatures.
using FloatArray = py::array_t<float>;
using DoubleArray = py::array_t<double>;
using Int64Array = py::array_t<int64_t>;
using IdsAndRows = py::typing::Tuple<Int64Array, FloatArray>;

void BindSparseLinear(py::module_& m);
void BindQuantileSketch(py::module_& m);
void BindTransforms(py::module_& m);
void BindHashStrings(py::module_& m);
void BindDelimited(py::module_& m);
void BindQuantizeRows(py::module_& m);
void BindTreeSums(py::module_& m);
void BindPackedEntries(py::module_& m);
void BindLookups(py::module_& m);
void BindDynamicLookup(py::module_& m);
void BindReuseDistances(py::module_& m);
void BindScorer(py::module_& m);

}  // namespace twml

template <>
struct pybind11::detail::handle_type_name<twml::ArrayLike> {
  static constexpr auto name = const_name("numpy.typing.ArrayLike");
};

template <class T>
struct pybind11::detail::handle_type_name<twml::InPlaceArray<T>> {
  static constexpr auto name =
      const_name("numpy.typing.NDArray[") + npy_format_descriptor<T>::name + const_name("]");
};

#endif  // TWML_PYTHON_BIND_H_
