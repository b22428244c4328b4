// Tensors of another library, as torch's, through the functions of DLPack's C exchange API: the
// inputs and outputs of runs without numpy arrays in between. All functions need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "bind/dlpack.h"
#include "exec/segment.h"

namespace sdx {

class TensorExchange {
 public:
  // `type` is the class of the tensors; throws nb::type_error if it has no exchange API.
  explicit TensorExchange(nanobind::object type);

  // Sets a slot that views a tensor's bytes; the tensor must outlive it. False if it is not a
  // tensor of the type on the CPU, or kernels cannot read it as it is: not contiguous or aligned.
  bool slot_of(PyObject* object, DType dtype, Slot& slot) const;

  // The tensor itself if it is contiguous, else a copy.
  nanobind::object contiguous(PyObject* object) const;

  // A tensor over a slot's bytes, whose block goes back to its pool when the tensor dies.
  nanobind::object tensor_of(const Slot& slot) const;

 private:
  bool is_tensor(PyObject* object) const;

  nanobind::object type_;
  const dlpack::Exchange* functions_;
};

}  // namespace sdx
