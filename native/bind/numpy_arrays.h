// numpy arrays through numpy's C interface: the inputs and outputs of runs. All functions need the
// GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "exec/segment.h"

namespace sdx {

// Initializes numpy's C interface; called once, when the module is imported.
void import_numpy();

// Whether an object is an array with spare capacity that a run returned.
bool has_capacity(PyObject* object);

// The required type of an array, and the axis along which it may have spare capacity (-1: none).
struct ArrayType {
  PyObject* descr;
  DType dtype;
  int capacity_axis;
};

// Sets a slot that views an array's bytes; the array must outlive it. False if it is not an array
// of the type, or kernels cannot read it as it is: not contiguous, or not aligned.
bool slot_of(PyObject* object, const ArrayType& type, Slot& slot);

// The address of an array's bytes; throws nb::type_error for other objects.
uintptr_t address_of(nanobind::handle array);

// Whether an array may be written to.
bool is_writeable(PyObject* object);

// The array itself if it is contiguous, else a copy.
nanobind::object contiguous(PyObject* object);

// An array over a slot's bytes, whose block goes back to its pool when the array dies.
nanobind::object array_of(const Slot& slot, PyObject* descr);

}  // namespace sdx
