// numpy arrays by its C interface: what a run takes and hands out.
#pragma once

#include <nanobind/nanobind.h>

#include "exec/segment.h"

namespace sdx {

// Called once, when the module is made.
void import_numpy();

// Whether an object is an array of this numpy type that kernels can read as it is.
bool is_plain_array(PyObject* object, PyObject* descr);

// A slot that views an array's bytes; the array must outlive it.
Slot slot_of(PyObject* array, DType dtype);

// An array over a slot's bytes, which go back to the store when the array dies.
nanobind::object array_of(const Slot& slot, PyObject* descr);

}  // namespace sdx
