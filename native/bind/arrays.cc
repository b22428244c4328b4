#include "bind/arrays.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include <cstring>

namespace nb = nanobind;

namespace sdx {
namespace {

PyArrayObject* as_array(PyObject* object) { return reinterpret_cast<PyArrayObject*>(object); }

// Arrays under this size are filled by a copy: an owner of its own would cost more than the bytes.
constexpr int64_t kCopied = 4096;

}  // namespace

void import_numpy() {
  if (_import_array() < 0) nb::raise_python_error();
}

bool is_plain_array(PyObject* object, PyObject* descr) {
  if (!PyArray_Check(object)) return false;
  PyArrayObject* array = as_array(object);
  constexpr int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
  return (PyArray_FLAGS(array) & wanted) == wanted && PyArray_NDIM(array) <= kMaxRank &&
         (reinterpret_cast<PyObject*>(PyArray_DESCR(array)) == descr ||
          PyArray_EquivTypes(PyArray_DESCR(array), reinterpret_cast<PyArray_Descr*>(descr)));
}

Slot slot_of(PyObject* object, DType dtype) {
  PyArrayObject* array = as_array(object);
  Slot slot;
  slot.view.dtype = dtype;
  slot.view.rank = PyArray_NDIM(array);
  for (int i = 0; i < slot.view.rank; ++i) slot.view.dims[i] = PyArray_DIM(array, i);
  slot.view.pack();
  slot.data = static_cast<std::byte*>(PyArray_DATA(array));
  return slot;
}

nb::object array_of(const Slot& slot, PyObject* descr) {
  npy_intp dims[kMaxRank];
  for (int i = 0; i < slot.view.rank; ++i) dims[i] = slot.view.dims[i];
  const int64_t bytes = slot.view.count() * size_of(slot.view.dtype);
  Py_INCREF(descr);  // the call below takes a reference
  auto* type = reinterpret_cast<PyArray_Descr*>(descr);
  const bool is_copied = bytes < kCopied;
  PyObject* array = PyArray_NewFromDescr(&PyArray_Type, type, slot.view.rank, dims, nullptr,
                                         is_copied ? nullptr : slot.data,
                                         is_copied ? 0 : NPY_ARRAY_CARRAY, nullptr);
  if (array == nullptr) nb::raise_python_error();
  nb::object made = nb::steal(array);
  if (is_copied) {
    std::memcpy(PyArray_DATA(as_array(array)), slot.data, size_t(bytes));
    return made;
  }
  auto* owner = new std::shared_ptr<std::byte>(slot.block);
  nb::capsule capsule(owner,
                      [](void* p) noexcept { delete static_cast<std::shared_ptr<std::byte>*>(p); });
  if (PyArray_SetBaseObject(as_array(array), capsule.release().ptr()) < 0) nb::raise_python_error();
  return made;
}

}  // namespace sdx
