// DLPack import and export of tensors of any element type, without a copy. What a capsule of
// another library claims is validated as far as possible; that its address is that of a tensor,
// that the memory has the claimed length, and that its deleter works cannot be.
#include "bind/dlpack.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "bind/gil.h"
#include "bind/register.h"
#include "os/system.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;
using dlpack::DLTensor, dlpack::Unversioned, dlpack::Versioned, dlpack::kCpu, dlpack::kMajor;

constexpr uint64_t kReadOnly = 1;
constexpr int kMaxDims = 64;
constexpr int64_t kMaxBytes = int64_t(1) << 56;

template <class Managed>
Managed* managed_in(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, Managed::kName)) return nullptr;
  return static_cast<Managed*>(PyCapsule_GetPointer(capsule, Managed::kName));
}

[[noreturn]] void refuse(const std::string& why) { throw nb::value_error(why.c_str()); }

// The bytes of a tensor; elements below 8 bits are packed. Refuses shapes that overflow.
int64_t bytes_of(const DLTensor& t) {
  if (t.rank < 0 || t.rank > kMaxDims) refuse("a rank of " + std::to_string(t.rank));
  if (t.rank > 0 && t.dims == nullptr)
    refuse("a rank of " + std::to_string(t.rank) + " and no shape");
  int64_t most = (int64_t(t.bits) + 7) / 8, bits = t.bits;
  for (int i = 0; i < t.rank; ++i) {
    const int64_t dim = t.dims[i];
    if (dim < 0) refuse("the size " + std::to_string(dim) + " in dim " + std::to_string(i));
    if (__builtin_mul_overflow(most, std::max<int64_t>(dim, 1), &most) || most > kMaxBytes)
      refuse("a shape that no memory holds");
    bits *= dim;
  }
  return (bits + 7) / 8;
}

bool is_mapped(uintptr_t address, int64_t size) {
  if (size <= 0) return true;
  uintptr_t end;
  if (__builtin_add_overflow(address, uintptr_t(size), &end)) return false;
  return os::is_mapped(address / os::page_bytes() * os::page_bytes(), end);
}

// The fields of a tensor as a tuple; refuses one that contradicts itself.
nb::tuple described(const DLTensor& t, bool is_read_only) {
  if (t.lanes != 1) refuse("elements of " + std::to_string(t.lanes) + " lanes");
  const int64_t size = bytes_of(t);
  auto address = reinterpret_cast<uintptr_t>(t.data);
  if (__builtin_add_overflow(address, uintptr_t(t.byte_offset), &address))
    refuse("a byte_offset of " + std::to_string(t.byte_offset));
  if (size > 0 && t.data == nullptr) refuse("no data");
  nb::list dims, strides;
  for (int i = 0; i < t.rank; ++i) dims.append(t.dims[i]);
  for (int i = 0; i < t.rank && t.strides != nullptr; ++i) strides.append(t.strides[i]);
  const nb::object all_strides = t.strides == nullptr ? nb::none() : nb::object(strides);
  return nb::make_tuple(address, dims, all_strides, t.code, t.bits, t.device, t.device_number,
                        is_read_only);
}

nb::object inspect_dlpack(nb::handle capsule) {
  if (const auto* managed = managed_in<Versioned>(capsule.ptr())) {
    if (managed->major != kMajor)
      refuse("version " + std::to_string(managed->major) + "." + std::to_string(managed->minor));
    return described(managed->tensor, (managed->flags & kReadOnly) != 0);
  }
  if (const auto* managed = managed_in<Unversioned>(capsule.ptr()))
    return described(managed->tensor, false);
  return nb::none();
}

// Marks a capsule as consumed; the returned object calls the deleter when it is destroyed.
template <class Managed>
nb::object consume(PyObject* capsule, Managed* managed) {
  if (PyCapsule_SetName(capsule, Managed::kUsed) != 0) nb::raise_python_error();
  return nb::capsule(managed, [](void* p) noexcept {
    auto* owned = static_cast<Managed*>(p);
    if (owned->deleter != nullptr) owned->deleter(owned);
  });
}

nb::object consume_dlpack(nb::handle capsule) {
  if (auto* managed = managed_in<Versioned>(capsule.ptr())) return consume(capsule.ptr(), managed);
  if (auto* managed = managed_in<Unversioned>(capsule.ptr()))
    return consume(capsule.ptr(), managed);
  throw nb::value_error("not a DLPack capsule, or it was consumed before");
}

// A tensor that another library uses. Its deleter may be called on any thread, with or without the
// GIL, and after the interpreter has ended.
template <class Managed>
struct Exported {
  Managed managed{};
  std::vector<int64_t> dims, strides;
  PyObject* owner = nullptr;

  static void destroy(Managed* managed) {
    auto* self = static_cast<Exported*>(managed->context);
    if (Py_IsInitialized()) {
      GilAcquire gil;
      Py_DECREF(self->owner);
    }
    delete self;
  }

  // The destructor of a capsule; one that was consumed has another name.
  static void destroy_capsule(PyObject* capsule) {
    if (auto* managed = managed_in<Managed>(capsule)) managed->deleter(managed);
  }
};

template <class Managed>
nb::object exported(DLTensor tensor, std::vector<int64_t> dims, bool is_read_only,
                    nb::handle owner) {
  auto made = std::make_unique<Exported<Managed>>();
  made->dims = std::move(dims);
  made->strides.resize(made->dims.size());
  int64_t step = 1;
  for (size_t i = made->dims.size(); i-- > 0; step *= std::max<int64_t>(made->dims[i], 1))
    made->strides[i] = step;
  tensor.dims = made->dims.data();
  tensor.strides = made->strides.data();
  made->managed.tensor = tensor;
  made->managed.context = made.get();
  made->managed.deleter = Exported<Managed>::destroy;
  if constexpr (std::is_same_v<Managed, Versioned>) {
    made->managed.major = kMajor;
    made->managed.flags = is_read_only ? kReadOnly : 0;
  }
  made->owner = owner.ptr();
  PyObject* capsule =
      PyCapsule_New(&made->managed, Managed::kName, Exported<Managed>::destroy_capsule);
  if (capsule == nullptr) nb::raise_python_error();
  Py_INCREF(made.release()->owner);
  return nb::steal(capsule);
}

nb::object export_dlpack(uintptr_t address, std::vector<int64_t> dims, int code, int bits,
                         nb::object owner, bool is_versioned, bool is_read_only) {
  const auto rank = int32_t(dims.size());
  const DLTensor tensor{reinterpret_cast<void*>(address),
                        kCpu,
                        0,
                        rank,
                        uint8_t(code),
                        uint8_t(bits),
                        1,
                        nullptr,
                        nullptr,
                        0};
  return is_versioned ? exported<Versioned>(tensor, std::move(dims), is_read_only, owner)
                      : exported<Unversioned>(tensor, std::move(dims), is_read_only, owner);
}

}  // namespace

void bind_dlpack(nb::module_& m) {
  m.def("export_dlpack", export_dlpack, "address"_a, "dims"_a, "code"_a, "bits"_a, "owner"_a,
        "is_versioned"_a, "is_read_only"_a,
        "A DLPack capsule of a tensor over memory that `owner` keeps alive.");
  m.def("inspect_dlpack", inspect_dlpack, "capsule"_a,
        nb::sig("def inspect_dlpack(capsule: object) -> tuple[int, list[int], list[int] | None, "
                "int, int, int, int, bool] | None"),
        "Address, dims, strides (None: row-major), type code, bits, device type, device number and "
        "whether it is read-only, of the tensor in a DLPack capsule; None for other objects and "
        "consumed capsules. Raises ValueError for an inconsistent tensor.");
  m.def("consume_dlpack", consume_dlpack, "capsule"_a,
        "Take ownership of the tensor of a capsule: it lives as long as the returned object.");
  m.def("is_mapped", is_mapped, "address"_a, "size_bytes"_a,
        "Whether all pages of an address range are mapped in this process.");
}

}  // namespace sdx
