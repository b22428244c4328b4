// String tensors between numpy and native code: Python's strings are met only here. All functions
// need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "exec/segment.h"
#include "exec/string_arena.h"

namespace sdx {

// Sets a slot with the strings of an array of objects, unicode characters or bytes. They are copied
// into the arena, so that no thread can change them during the run. False if it is not such an
// array or an element is not a string; throws std::bad_alloc.
bool string_slot(PyObject* object, StringArena& strings, Slot& slot);

// A slot's strings as an array of str objects.
nanobind::object string_array(const Slot& slot);

// The output of ZipMap: one dict of `keys` to numbers for each row of a float32 slot.
nanobind::object zip_map(const Slot& slot, PyObject* keys);

}  // namespace sdx
