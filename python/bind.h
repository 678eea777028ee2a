// What the sources of the _core module share.
#ifndef TWML_PYTHON_BIND_H_
#define TWML_PYTHON_BIND_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

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

// What NumPy can make an array of. The bindings take their arguments as this, so that As checks all
// of them: pybind11's own conversion would read text as numbers and cut fractions off ids.
class ArrayLike : public py::object {
 public:
  PYBIND11_OBJECT(ArrayLike, py::object, IsAnything)

 private:
  static bool IsAnything(PyObject* object) { return object != nullptr; }
};

// An argument that is an integer: a float, even one without a fraction, is refused.
inline py::arg IntArg(const char* name) {
  py::arg argument(name);
  argument.noconvert();
  return argument;
}

inline void RaiseIfError(const Status& s) {
  if (!s.ok()) throw py::value_error(s.message());
}

// What As gives: C-contiguous and aligned, in the machine's byte order.
template <class T>
using Array = py::array_t<T, py::array::c_style>;

// NumPy's conversion, to `dtype` if that is given. Throws NumPy's error, as where memory runs out.
inline py::array ConvertWithNumPy(const py::handle& object, std::optional<py::dtype> dtype) {
  using Api = py::detail::npy_api;
  const int as_they_are = Api::NPY_ARRAY_ENSUREARRAY_;
  const int flags = as_they_are | Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_ |
                    Api::NPY_ARRAY_FORCECAST_;
  PyObject* const array =
      Api::get().PyArray_FromAny_(object.ptr(), dtype ? dtype->release().ptr() : nullptr, 0, 0,
                                  dtype ? flags : as_they_are, nullptr);
  if (array == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::array>(array);
}

// `object` as an array of any dtype; an empty handle if it is none.
inline py::array ToAnyArray(const py::handle& object) {
  try {
    return ConvertWithNumPy(object, {});
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
    return py::reinterpret_borrow<py::array>(py::handle());
  }
}

// Refuses items of an array of wider integers that T cannot hold.
template <class T, class Wide>
void CheckFits(const py::array& array, const char* name) {
  const py::array wide = ConvertWithNumPy(array, py::dtype::of<Wide>());
  const auto* items = static_cast<const Wide*>(wide.data());
  for (py::ssize_t i = 0; i < wide.size(); ++i) {
    if (static_cast<Wide>(static_cast<T>(items[i])) == items[i] &&
        (static_cast<T>(items[i]) < 0) == (items[i] < 0)) {
      continue;
    }
    RaiseIfError(Invalid(name, "[", i, "] = ", items[i], " does not fit into int", 8 * sizeof(T)));
  }
}

// `object` as an array of T. Refuses what a conversion would change beyond rounding, so a batch of
// fractional ids is an error and not another batch.
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
    const auto size = static_cast<size_t>(a.itemsize());
    if (kind == 'u' && size >= sizeof(T)) CheckFits<T, uint64_t>(a, name);
    if (kind == 'i' && size > sizeof(T)) CheckFits<T, int64_t>(a, name);
  }
  return py::reinterpret_steal<Array<T>>(ConvertWithNumPy(a, py::dtype::of<T>()).release());
}

// As, but nothing of None.
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

// For pairs of arrays, one item of `a` for each of `like`.
inline void RequireShapeOf(const py::array& like, const char* like_name, const py::array& a,
                           const char* name) {
  if (std::equal(a.shape(), a.shape() + a.ndim(), like.shape(), like.shape() + like.ndim())) return;
  RaiseIfError(Invalid(name, " must have the shape of ", like_name, ", ", ShapeOf(like), ", got ",
                       ShapeOf(a)));
}

// Refuses an array that cannot be used where it is, as one that is changed in place must be.
template <class T>
void RequireUsableInPlace(const py::array& a, const char* name, bool written) {
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(a)) {
    RaiseIfError(Invalid(name, " must be a contiguous ",
                         py::str(py::dtype::of<T>()).cast<std::string>(), " array, got dtype ",
                         py::str(a.dtype()).cast<std::string>()));
  }
  if ((a.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0) {
    RaiseIfError(Invalid(name, " must be aligned in memory: a view into packed records is not"));
  }
  if (written && !a.writeable()) {
    RaiseIfError(Invalid(name, " must be writeable: training changes it in place"));
  }
}

template <class T>
Span<const T> SpanOf(const Array<T>& a) {
  return {a.data(), static_cast<int64_t>(a.size())};
}

// A NumPy array that takes over the vector's memory.
template <class T>
py::array_t<T> MoveToArray(std::vector<T> v, std::vector<py::ssize_t> shape = {}) {
  auto* kept = new std::vector<T>(std::move(v));
  py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  if (shape.empty()) shape = {static_cast<py::ssize_t>(kept->size())};
  return py::array_t<T>(shape, kept->data(), owner);
}

void BindSparseLinear(py::module_& m);
void BindQuantileSketch(py::module_& m);
void BindTransforms(py::module_& m);

}  // namespace twml

template <>
struct pybind11::detail::handle_type_name<twml::ArrayLike> {
  static constexpr auto name = const_name("numpy.typing.ArrayLike");
};

#endif  // TWML_PYTHON_BIND_H_
