#include "bind/arrays.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL sardonyx_numpy  // of texts.cc too
#include <numpy/arrayobject.h>

#include <cstring>

#include "exec/grow.h"

namespace nb = nanobind;

namespace sdx {
namespace {

PyArrayObject* as_array(PyObject* object) { return reinterpret_cast<PyArrayObject*>(object); }

// Arrays under this size are filled by a copy: an owner of its own would cost more than the bytes.
constexpr int64_t kCopied = 4096;

// What keeps the bytes of an array that was handed out; its base is a capsule of this name.
struct Owner {
  std::shared_ptr<std::byte> block;
  std::shared_ptr<Room> room;
};
constexpr const char* kOwner = "sardonyx.block";

const Owner* owner_of(PyArrayObject* array) {
  PyObject* base = PyArray_BASE(array);
  if (base == nullptr || !PyCapsule_IsValid(base, kOwner)) return nullptr;
  return static_cast<const Owner*>(PyCapsule_GetPointer(base, kOwner));
}

bool is_of_type(PyArrayObject* array, PyObject* descr) {
  return reinterpret_cast<PyObject*>(PyArray_DESCR(array)) == descr ||
         PyArray_EquivTypes(PyArray_DESCR(array), reinterpret_cast<PyArray_Descr*>(descr));
}

// Takes over the room that an array was handed out with, if it still lies as it did then.
bool take_room(PyArrayObject* array, int axis, Slot& slot) {
  const Owner* owner = owner_of(array);
  if (owner == nullptr || owner->room == nullptr || slot.data != owner->block.get()) return false;
  View view = slot.view;
  pack_with_room(view, axis, owner->room->rows);
  const int64_t size = size_of(view.dtype);
  for (int i = 0; i < view.rank; ++i)
    if (PyArray_STRIDE(array, i) != view.strides[i] * size) return false;
  slot.view = view;
  slot.block = owner->block;
  slot.room = owner->room;
  return true;
}

}  // namespace

void import_numpy() {
  if (_import_array() < 0) nb::raise_python_error();
}

uintptr_t address_of(nb::handle array) {
  if (!PyArray_Check(array.ptr())) throw nb::type_error("an array is needed");
  return reinterpret_cast<uintptr_t>(PyArray_DATA(as_array(array.ptr())));
}

bool has_room(PyObject* object) {
  const Owner* owner = PyArray_Check(object) ? owner_of(as_array(object)) : nullptr;
  return owner != nullptr && owner->room != nullptr;
}

bool slot_of(PyObject* object, const Wanted& wanted, Slot& slot) {
  if (!PyArray_Check(object)) return false;
  PyArrayObject* array = as_array(object);
  if (PyArray_NDIM(array) > kMaxRank || !is_of_type(array, wanted.descr)) return false;
  slot.view.dtype = wanted.dtype;
  slot.view.rank = PyArray_NDIM(array);
  for (int i = 0; i < slot.view.rank; ++i) slot.view.dims[i] = PyArray_DIM(array, i);
  slot.view.pack();
  slot.data = static_cast<std::byte*>(PyArray_DATA(array));
  if (wanted.room_axis >= 0 && wanted.room_axis < slot.view.rank &&
      take_room(array, wanted.room_axis, slot))
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
  auto* type = reinterpret_cast<PyArray_Descr*>(descr);
  const bool is_copied = bytes < kCopied && slot.room == nullptr;
  constexpr int flags = NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED;
  PyObject* array = PyArray_NewFromDescr(
      &PyArray_Type, type, slot.view.rank, dims, slot.room == nullptr ? nullptr : strides,
      is_copied ? nullptr : slot.data, is_copied ? 0 : flags, nullptr);
  if (array == nullptr) nb::raise_python_error();
  nb::object made = nb::steal(array);
  if (is_copied) {
    std::memcpy(PyArray_DATA(as_array(array)), slot.data, size_t(bytes));
    return made;
  }
  auto* owner = new Owner{slot.block, slot.room};
  nb::capsule capsule(owner, kOwner, [](void* p) noexcept { delete static_cast<Owner*>(p); });
  if (PyArray_SetBaseObject(as_array(array), capsule.release().ptr()) < 0) nb::raise_python_error();
  return made;
}

}  // namespace sdx
