// Registers TensorRecord and SparseTensorRecord.
#include "bind/convert.h"
#include "bind/numbers.h"
#include "bind/register.h"
#include "load/decode.h"

namespace sdx {
namespace {

using TensorRef = Ref<Tensor>;

// Indexed by TensorStorage.
constexpr const char* kStorages[] = {"none",  "raw",    "float",  "int32",
                                     "int64", "double", "uint64", "string"};

template <class T>
nb::object elements(const Tensor& tensor) {
  return numbers<T>(count_elements(tensor),
                    [&](T* out, uint64_t n) { read_elements(tensor, out, n); });
}

nb::object values(const Tensor& tensor) {
  if (tensor.is_in_place) return nb::none();
  switch (tensor.storage) {
    case TensorStorage::float32: return elements<float>(tensor);
    case TensorStorage::float64: return elements<double>(tensor);
    case TensorStorage::int32: return elements<int32_t>(tensor);
    case TensorStorage::int64: return elements<int64_t>(tensor);
    case TensorStorage::uint64: return elements<uint64_t>(tensor);
    default: return nb::none();
  }
}

nb::object strings(const Tensor& tensor) {
  if (tensor.storage != TensorStorage::string) return nb::list();
  return list_of(read_strings(tensor), to_bytes);
}

nb::object dims(const std::vector<int64_t>& sizes) {
  return tuple_of(sizes, [](int64_t size) -> nb::object { return nb::int_(size); });
}

void bind_tensor_data(nb::class_<TensorRef>& c) {
  c.def_prop_ro(
       "storage", [](const TensorRef& r) { return kStorages[static_cast<size_t>(r->storage)]; },
       "Which field holds the data: \"none\", \"raw\", \"float\", \"int32\", \"int64\", "
       "\"double\", \"uint64\" or \"string\".")
      .def_prop_ro(
          "offset",
          [](const TensorRef& r) {
            return r->is_in_place ? static_cast<int64_t>(r->offset) : int64_t{-1};
          },
          "Where the little-endian elements start in the buffer; -1 when they are encoded "
          "otherwise.")
      .def_prop_ro(
          "length", [](const TensorRef& r) { return r->length; },
          "Bytes from `offset` on; 0 when there is no offset.")
      .def_prop_ro(
          "plain",
          [](const TensorRef& r) -> nb::object {
            if (r->storage != TensorStorage::raw || !r->is_in_place || r->location ||
                r->has_segment)
              return nb::none();
            return nb::make_tuple(r->data_type, dims(r->dims), r->offset, r->length);
          },
          nb::sig("def plain(self) -> tuple[int, tuple[int, ...], int, int] | None"),
          "data_type, dims, offset and length of a tensor with raw_data in the buffer; else None.")
      .def_prop_ro(
          "values", [](const TensorRef& r) { return values(*r); },
          nb::sig("def values(self) -> numpy.typing.NDArray[typing.Any] | None"),
          "Typed data as a new 1-d array; None when they are at `offset` or are strings.")
      .def_prop_ro(
          "strings", [](const TensorRef& r) { return strings(*r); },
          nb::sig("def strings(self) -> list[bytes]"), "string_data.");
}

}  // namespace

void bind_tensors(nb::module_& m) {
  nb::class_<TensorRef> tensor(m, "TensorRecord", "A TensorProto, its data left in the buffer.");
  tensor
      .def_prop_ro(
          "name", [](const TensorRef& r) { return to_str(r->name); },
          nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "data_type", [](const TensorRef& r) { return r->data_type; }, "TensorProto.DataType.")
      .def_prop_ro(
          "dims", [](const TensorRef& r) { return dims(r->dims); },
          nb::sig("def dims(self) -> tuple[int, ...]"), "As the file says, unchecked.")
      .def_prop_ro(
          "location", [](const TensorRef& r) { return r->location; }, "1 when external, else 0.")
      .def_prop_ro(
          "external_data",
          [](const TensorRef& r) {
            return list_of(r->external_data, [](const StringEntry& e) -> nb::object {
              return nb::make_tuple(to_str(e.first), to_str(e.second));
            });
          },
          nb::sig("def external_data(self) -> list[tuple[str, str]]"))
      .def_prop_ro(
          "has_segment", [](const TensorRef& r) { return r->has_segment; },
          "Whether the tensor is stored in segments, of which this is one.");
  bind_tensor_data(tensor);

  using SparseRef = Ref<SparseTensor>;
  nb::class_<SparseRef>(m, "SparseTensorRecord", "A SparseTensorProto.")
      .def_prop_ro(
          "values", [](const SparseRef& r) { return r.member(r->values); },
          nb::sig("def values(self) -> TensorRecord"))
      .def_prop_ro(
          "indices", [](const SparseRef& r) { return r.member(r->indices); },
          nb::sig("def indices(self) -> TensorRecord"))
      .def_prop_ro(
          "dims", [](const SparseRef& r) { return dims(r->dims); },
          nb::sig("def dims(self) -> tuple[int, ...]"), "As the file says, unchecked.");
}

}  // namespace sdx
