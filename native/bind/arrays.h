// numpy arrays by its C interface: what a run takes and hands out.
#pragma once

#include <nanobind/nanobind.h>

#include "exec/segment.h"

namespace sdx {

// Called once, when the module is made.
void import_numpy();

// Whether an object is an array that was handed out with room to grow.
bool has_room(PyObject* object);

// What an input of a run must be: its type, and the axis along which it may have room (-1: none).
struct Wanted {
  PyObject* descr;
  DType dtype;
  int room_axis;
};

// A slot that views an array's bytes; the array must outlive it. False where kernels cannot read
// them as they are.
bool slot_of(PyObject* object, const Wanted& wanted, Slot& slot);

// Where the bytes of an array lie.
uintptr_t address_of(nanobind::handle array);

// Whether an array may be written to.
bool is_writeable(PyObject* object);

// An array as it is where it has no gaps, else a copy of it.
nanobind::object contiguous(PyObject* object);

// An array over a slot's bytes, which go back to the store when the array dies.
nanobind::object array_of(const Slot& slot, PyObject* descr);

}  // namespace sdx
