#include "bind/tensor_exchange.h"

#include <cstring>
#include <memory>
#include <new>

#include "bind/register.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;

constexpr const char* kAttribute = "__dlpack_c_exchange_api__";

// Results below this size are copied: blocks are whole pages.
constexpr size_t kMinOwned = 4096;
constexpr std::align_val_t kAlign{64};

struct TypeCode {
  uint8_t code, bits;
};

// The number of an element type in DLPack; no bits for a type that has none.
constexpr TypeCode code_of(DType dtype) {
  constexpr uint8_t integer = 0, natural = 1, real = 2, bfloat = 4, complex = 5, boolean = 6;
  switch (dtype) {
    case DType::f32:
    case DType::f16:
    case DType::f64: return {real, uint8_t(size_of(dtype) * 8)};
    case DType::u8:
    case DType::u16:
    case DType::u32:
    case DType::u64: return {natural, uint8_t(size_of(dtype) * 8)};
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64: return {integer, uint8_t(size_of(dtype) * 8)};
    case DType::boolean: return {boolean, 8};
    case DType::bf16: return {bfloat, 16};
    case DType::c64:
    case DType::c128: return {complex, uint8_t(size_of(dtype) * 8)};
    default: return {0, 0};
  }
}

// A result that the other library uses. Its deleter may be called on any thread, without the GIL.
struct Result {
  dlpack::Versioned managed{};
  Slot slot;

  static void destroy(dlpack::Versioned* managed) { delete static_cast<Result*>(managed->context); }
};

std::shared_ptr<std::byte> copied(const std::byte* data, size_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlign));
  std::memcpy(memory, data, bytes);
  return {memory, [](std::byte* p) { ::operator delete(p, kAlign); }};
}

bool is_set(int status) {
  if (status != 0) PyErr_Clear();
  return status == 0;
}

}  // namespace

TensorExchange::TensorExchange(nb::object type) : type_(std::move(type)), functions_(nullptr) {
  const nb::object capsule = nb::getattr(type_, kAttribute, nb::none());
  if (PyType_Check(type_.ptr()) && PyCapsule_IsValid(capsule.ptr(), dlpack::Exchange::kName))
    functions_ = static_cast<const dlpack::Exchange*>(
        PyCapsule_GetPointer(capsule.ptr(), dlpack::Exchange::kName));
  while (functions_ != nullptr && functions_->major != dlpack::kMajor)
    functions_ = functions_->previous;
  if (functions_ == nullptr || functions_->tensor_of == nullptr)
    throw nb::type_error("the class has no DLPack exchange API of version 1");
}

bool TensorExchange::is_tensor(PyObject* object) const {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type_.ptr())) != 0;
}

bool TensorExchange::slot_of(PyObject* object, DType dtype, Slot& slot) const {
  dlpack::DLTensor tensor{};
  if (!is_tensor(object) || !is_set(functions_->tensor_of(object, &tensor))) return false;
  const TypeCode type = code_of(dtype);
  if (tensor.device != dlpack::kCpu || tensor.rank > kMaxRank || tensor.lanes != 1 ||
      tensor.code != type.code || tensor.bits != type.bits)
    return false;
  View& view = slot.view;
  view.dtype = dtype;
  view.rank = tensor.rank;
  for (int i = 0; i < view.rank; ++i) view.dims[i] = tensor.dims[i];
  for (int i = 0; i < view.rank && tensor.strides != nullptr; ++i)
    view.strides[i] = tensor.strides[i];
  if (tensor.strides != nullptr && view.count() != 0 && !view.is_contiguous()) return false;
  view.set_contiguous_strides();
  slot.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  // Only a pointer to no elements may be null, and is not read.
  return reinterpret_cast<uintptr_t>(slot.data) % uintptr_t(size_of(dtype)) == 0;
}

nb::object TensorExchange::contiguous(PyObject* object) const {
  return is_tensor(object) ? nb::handle(object).attr("contiguous")() : nb::borrow(object);
}

nb::object TensorExchange::tensor_of(const Slot& slot) const {
  auto made = std::make_unique<Result>();
  made->slot = slot;
  Slot& own = made->slot;
  const size_t bytes = size_t(own.view.count() * size_of(own.view.dtype));
  if (bytes < kMinOwned && own.capacity == nullptr) {
    own.block = copied(own.data, bytes);
    own.data = own.block.get();
  }
  const TypeCode type = code_of(own.view.dtype);
  dlpack::Versioned& managed = made->managed;
  managed.major = dlpack::kMajor;
  managed.context = made.get();
  managed.deleter = Result::destroy;
  managed.tensor = {own.data,      dlpack::kCpu,     0, own.view.rank, type.code, type.bits, 1,
                    own.view.dims, own.view.strides, 0};
  void* object = nullptr;
  if (functions_->object_of(&managed, &object) != 0) nb::raise_python_error();
  made.release();
  return nb::steal(static_cast<PyObject*>(object));
}

void bind_tensor_exchange(nb::module_& m) {
  nb::class_<TensorExchange>(m, "TensorExchange",
                             "A class of tensors whose memory runs read and return directly.")
      .def(nb::init<nb::object>(), "type"_a);
}

}  // namespace sdx
