// Tensors of any element type, numpy's or not, to and from DLPack without a copy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "bind/parts.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;

nb::object export_tensor(uintptr_t address, const std::vector<size_t>& dims, int code, int bits,
                         nb::object owner) {
  const nb::dlpack::dtype type{uint8_t(code), uint8_t(bits), 1};
  nb::ndarray<> made(reinterpret_cast<void*>(address), dims.size(), dims.data(), owner, nullptr,
                     type, nb::device::cpu::value, 0);
  return nb::cast(made);
}

// What another library's tensor is: address, dims, strides in elements, type code, bits, device,
// and what keeps it.
nb::tuple import_tensor(nb::ndarray<> given) {
  std::vector<int64_t> dims, strides;
  for (size_t i = 0; i < given.ndim(); ++i) {
    dims.push_back(int64_t(given.shape(i)));
    strides.push_back(given.stride(i));
  }
  const nb::dlpack::dtype type = given.dtype();
  nb::capsule owner(new nb::ndarray<>(given),
                    [](void* p) noexcept { delete static_cast<nb::ndarray<>*>(p); });
  return nb::make_tuple(reinterpret_cast<uintptr_t>(given.data()), nb::cast(dims),
                        nb::cast(strides), int(type.code), int(type.bits) * type.lanes,
                        given.device_type(), owner);
}

}  // namespace

void bind_dlpack(nb::module_& m) {
  m.def("export_tensor", export_tensor, "address"_a, "dims"_a, "code"_a, "bits"_a, "owner"_a,
        "A DLPack capsule of a tensor over memory that `owner` keeps.");
  m.def("import_tensor", import_tensor, "given"_a.noconvert(),
        nb::sig("def import_tensor(given: object) -> tuple[int, list[int], list[int], int, int, "
                "int, object]"),
        "Address, dims, strides, type code, bits and device of a DLPack tensor, and its owner.");
}

}  // namespace sdx
