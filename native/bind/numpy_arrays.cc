#include "bind/numpy_arrays.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL sardonyx_numpy  // shared with strings.cc
#include <numpy/arrayobject.h>

#include <cstring>

#include "exec/cache_growth.h"

namespace nb = nanobind;

namespace sdx {
namespace {

PyArrayObject* as_array(PyObject* object) { return reinterpret_cast<PyArrayObject*>(object); }

// Arrays below this size are copied: a capsule that owns the block would cost more.
constexpr int64_t kMinOwned = 4096;

// The owner of the bytes of a returned array, in a capsule that is the array's base.
struct BlockOwner {
  std::shared_ptr<std::byte> block;
  std::shared_ptr<Capacity> capacity;
};
constexpr const char* kCapsuleName = "sardonyx.block";

const BlockOwner* owner_of(PyArrayObject* array) {
  PyObject* base = PyArray_BASE(array);
  if (base == nullptr || !PyCapsule_IsValid(base, kCapsuleName)) return nullptr;
  return static_cast<const BlockOwner*>(PyCapsule_GetPointer(base, kCapsuleName));
}

bool is_of_type(PyArrayObject* array, PyObject* descr) {
  return reinterpret_cast<PyObject*>(PyArray_DESCR(array)) == descr ||
         PyArray_EquivTypes(PyArray_DESCR(array), reinterpret_cast<PyArray_Descr*>(descr));
}

// Shares the block of an array with spare capacity, if the array still has the strides that it was
// returned with: a user may have reshaped it in place.
bool share_capacity(PyArrayObject* array, int axis, Slot& slot) {
  const BlockOwner* owner = owner_of(array);
  if (owner == nullptr || owner->capacity == nullptr || slot.data != owner->block.get())
    return false;
  View view = slot.view;
  set_strides_with_capacity(view, axis, owner->capacity->rows);
  const int64_t size = size_of(view.dtype);
  for (int i = 0; i < view.rank; ++i)
    if (PyArray_STRIDE(array, i) != view.strides[i] * size) return false;
  slot.view = view;
  slot.block = owner->block;
  slot.capacity = owner->capacity;
  return true;
}

}  // namespace

void import_numpy() {
  if (_import_array() < 0) nb::raise_python_error();
}

uintptr_t address_of(nb::handle array) {
  if (!PyArray_Check(array.ptr())) throw nb::type_error("expected a numpy array");
  return reinterpret_cast<uintptr_t>(PyArray_DATA(as_array(array.ptr())));
}

bool has_capacity(PyObject* object) {
  const BlockOwner* owner = PyArray_Check(object) ? owner_of(as_array(object)) : nullptr;
  return owner != nullptr && owner->capacity != nullptr;
}

bool slot_of(PyObject* object, const ArrayType& type, Slot& slot) {
  if (!PyArray_Check(object)) return false;
  PyArrayObject* array = as_array(object);
  if (PyArray_NDIM(array) > kMaxRank || !is_of_type(array, type.descr)) return false;
  slot.view.dtype = type.dtype;
  slot.view.rank = PyArray_NDIM(array);
  for (int i = 0; i < slot.view.rank; ++i) slot.view.dims[i] = PyArray_DIM(array, i);
  slot.view.set_contiguous_strides();
  slot.data = static_cast<std::byte*>(PyArray_DATA(array));
  if (type.capacity_axis >= 0 && type.capacity_axis < slot.view.rank &&
      share_capacity(array, type.capacity_axis, slot))
    return true;
  constexpr int plain = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
  return (PyArray_FLAGS(array) & plain) == plain;
}

bool is_writeable(PyObject* object) {
  return PyArray_Check(object) && PyArray_ISWRITEABLE(as_array(object));
}

nb::object contiguous(PyObject* object) {
  if (!PyArray_Check(object)) return nb::borrow(object);
  PyObject* made = reinterpret_cast<PyObject*>(PyArray_GETCONTIGUOUS(as_array(object)));
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

nb::object array_of(const Slot& slot, PyObject* descr) {
  npy_intp dims[kMaxRank], strides[kMaxRank];
  for (int i = 0; i < slot.view.rank; ++i) {
    dims[i] = slot.view.dims[i];
    strides[i] = slot.view.strides[i] * size_of(slot.view.dtype);
  }
  const int64_t bytes = slot.view.count() * size_of(slot.view.dtype);
  Py_INCREF(descr);  // the call below takes a reference
  auto* dtype = reinterpret_cast<PyArray_Descr*>(descr);
  const bool is_copied = bytes < kMinOwned && slot.capacity == nullptr;
  constexpr int flags = NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED;
  PyObject* array = PyArray_NewFromDescr(
      &PyArray_Type, dtype, slot.view.rank, dims, slot.capacity == nullptr ? nullptr : strides,
      is_copied ? nullptr : slot.data, is_copied ? 0 : flags, nullptr);
  if (array == nullptr) nb::raise_python_error();
  nb::object made = nb::steal(array);
  if (is_copied) {
    std::memcpy(PyArray_DATA(as_array(array)), slot.data, size_t(bytes));
    return made;
  }
  auto* owner = new BlockOwner{slot.block, slot.capacity};
  nb::capsule capsule(owner, kCapsuleName,
                      [](void* p) noexcept { delete static_cast<BlockOwner*>(p); });
  if (PyArray_SetBaseObject(as_array(array), capsule.release().ptr()) < 0) nb::raise_python_error();
  return made;
}

}  // namespace sdx
