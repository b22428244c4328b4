// String tensors between numpy and native code.
#pragma once

#include <nanobind/nanobind.h>

#include "exec/segment.h"
#include "exec/texts.h"

namespace sdx {

// A slot with the strings of an array: of objects, of characters or of bytes. They are copied, so
// that nobody can change them. False where it is no such array, or an element is no text; throws
// std::bad_alloc.
bool text_slot(PyObject* object, Texts& texts, Slot& slot);

// A slot's strings as an array of objects.
nanobind::object text_array(const Slot& slot);

// The rows of a slot of float32 as a list of dicts with these keys, as ZipMap has it.
nanobind::object zipped(const Slot& slot, PyObject* keys);

}  // namespace sdx
