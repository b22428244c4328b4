// One-dimensional, read-only numpy arrays of numbers that a decoder writes, without a second copy.
#pragma once

#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>

#include "bind/convert.h"

namespace sdx {

// numpy.dtype(name); the reference is never released.
nb::handle numpy_dtype(const char* name);

// A read-only numpy array over a bytes object.
nb::object array_over(nb::handle data, nb::handle dtype);

template <class T>
constexpr const char* dtype_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, double>) return "float64";
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, int64_t>) return "int64";
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double> ||
                std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t> ||
                std::is_same_v<T, uint64_t>);
  return "uint64";
}

// A read-only numpy array of `n` numbers, written by `fill(out, n)`.
template <class T, class F>
nb::object numbers(uint64_t n, F&& fill) {
  if (n > std::numeric_limits<Py_ssize_t>::max() / sizeof(T)) throw std::bad_alloc();
  nb::object data =
      checked(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n * sizeof(T))));
  fill(reinterpret_cast<T*>(PyBytes_AS_STRING(data.ptr())), n);
  static const nb::handle dtype = numpy_dtype(dtype_name<T>());
  return array_over(data, dtype);
}

}  // namespace sdx
