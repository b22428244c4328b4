// TensorProto and SparseTensorProto, and the typed data that a tensor may hold.
#include <array>
#include <type_traits>

#include "load/decode.h"
#include "load/messages.h"

namespace sdx {
namespace {

struct DataField {
  uint32_t number;
  const char* name;
  Wire element;
};

// Indexed by TensorStorage.
constexpr DataField kDataFields[] = {
    {0, "", Wire::bytes},
    {9, "raw_data", Wire::bytes},
    {4, "float_data", Wire::fixed32},
    {5, "int32_data", Wire::varint},
    {7, "int64_data", Wire::varint},
    {10, "double_data", Wire::fixed64},
    {11, "uint64_data", Wire::varint},
    {6, "string_data", Wire::bytes},
};

const DataField& data_field(TensorStorage storage) {
  return kDataFields[static_cast<size_t>(storage)];
}

// Records which data fields a message has, reading their lengths only.
class DataFields {
 public:
  void add(Reader& r, const Field& f, TensorStorage storage) {
    const DataField& field = data_field(storage);
    const std::string_view chunk = field.element == Wire::bytes
                                       ? r.bytes(f, field.name)
                                       : r.skip_scalars(f, field.name, field.element);
    Seen& seen = seen_[static_cast<size_t>(storage)];
    seen.chunks = storage == TensorStorage::raw ? 1 : seen.chunks + 1;
    seen.last = chunk;
    seen.has_elements = storage == TensorStorage::string || !chunk.empty() ||
                        (storage != TensorStorage::raw && seen.has_elements);
  }

  void describe(Tensor& tensor) const {
    tensor.storage = choose();
    const Seen& seen = seen_[static_cast<size_t>(tensor.storage)];
    const Wire element = data_field(tensor.storage).element;
    const bool is_fixed = element == Wire::fixed32 || element == Wire::fixed64;
    tensor.is_in_place = tensor.storage == TensorStorage::raw || (is_fixed && seen.chunks == 1);
    if (!tensor.is_in_place) return;
    tensor.offset = tensor.body.offset_of(seen.last.data());
    tensor.length = seen.last.size();
  }

 private:
  struct Seen {
    uint64_t chunks = 0;
    bool has_elements = false;
    std::string_view last;
  };

  // ONNX allows one data field. Of several, the first in the order of TensorStorage that has
  // elements counts: some writers add the others, empty.
  TensorStorage choose() const {
    TensorStorage chosen = TensorStorage::none;
    for (size_t i = seen_.size(); i-- > 1;) {
      const auto better = [&] {
        return seen_[i].has_elements || !seen_[static_cast<size_t>(chosen)].has_elements;
      };
      if (seen_[i].chunks != 0 && better()) chosen = static_cast<TensorStorage>(i);
    }
    return chosen;
  }

  std::array<Seen, std::size(kDataFields)> seen_{};
};

void decode_dims(Reader& r, const Field& f, std::vector<int64_t>& dims) {
  r.varints(f, "dims", [&](uint64_t v) { dims.push_back(static_cast<int64_t>(v)); });
}

// Calls `visit` for each occurrence of the tensor's data field: a repeated field may come in
// several packed chunks or element by element.
template <class F>
void each_data_field(const Tensor& tensor, F&& visit) {
  const DataField& field = data_field(tensor.storage);
  Reader r = tensor.body;
  for (Field f; r.next(f);) {
    if (f.number == field.number)
      visit(r, f, field);
    else
      r.skip(f);
  }
}

// A varint ends at each byte whose top bit is clear.
uint64_t count_varints(std::string_view chunk) {
  uint64_t n = 0;
  for (const char c : chunk) n += static_cast<uint8_t>(c) < 0x80;
  return n;
}

}  // namespace

void decode_tensor(Reader r, Tensor& tensor) {
  tensor = Tensor();
  tensor.body = r;
  DataFields data;
  for (Field f; r.next(f);) switch (f.number) {
      case 1: decode_dims(r, f, tensor.dims); break;
      case 2: tensor.data_type = r.int32(f, "data_type"); break;
      case 3:
        r.bytes(f, "segment");
        tensor.has_segment = true;
        break;
      case 4: data.add(r, f, TensorStorage::float32); break;
      case 5: data.add(r, f, TensorStorage::int32); break;
      case 6: data.add(r, f, TensorStorage::string); break;
      case 7: data.add(r, f, TensorStorage::int64); break;
      case 8: tensor.name = r.utf8(f, "name"); break;
      case 9: data.add(r, f, TensorStorage::raw); break;
      case 10: data.add(r, f, TensorStorage::float64); break;
      case 11: data.add(r, f, TensorStorage::uint64); break;
      case 13:
        tensor.external_data.push_back(
            decode_utf8_entry(r.child(f, "external_data", "StringStringEntryProto")));
        break;
      case 14: tensor.location = r.int32(f, "data_location"); break;
      default: r.skip(f);
    }
  data.describe(tensor);
}

void decode_sparse_tensor(Reader r, SparseTensor& tensor) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1: decode_tensor(r.child(f, "values", "TensorProto"), tensor.values); break;
      case 2: decode_tensor(r.child(f, "indices", "TensorProto"), tensor.indices); break;
      case 3: decode_dims(r, f, tensor.dims); break;
      default: r.skip(f);
    }
}

Tensor decode_tensor(std::string_view buffer) {
  Tensor tensor;
  decode_tensor(Reader(buffer, "TensorProto"), tensor);
  return tensor;
}

uint64_t count_elements(const Tensor& tensor) {
  uint64_t n = 0;
  each_data_field(tensor, [&](Reader& r, const Field& f, const DataField& field) {
    const std::string_view chunk = r.skip_scalars(f, field.name, field.element);
    n += field.element == Wire::varint    ? count_varints(chunk)
         : field.element == Wire::fixed32 ? chunk.size() / 4
                                          : chunk.size() / 8;
  });
  return n;
}

template <class T>
void read_elements(const Tensor& tensor, T* out, uint64_t n) {
  T* const end = out + n;
  each_data_field(tensor, [&](Reader& r, const Field& f, const DataField& field) {
    // Checked again, although count_elements has counted: the owner of a writable buffer may have
    // changed it in between.
    const auto store = [&](auto value) {
      if (out == end) r.fail(f, field.name, "the data changed while they were read");
      *out++ = static_cast<T>(value);
    };
    if constexpr (std::is_floating_point_v<T>)
      r.fixed<T>(f, field.name, store);
    else
      r.varints(f, field.name, store);
  });
}

template void read_elements(const Tensor&, float*, uint64_t);
template void read_elements(const Tensor&, double*, uint64_t);
template void read_elements(const Tensor&, int32_t*, uint64_t);
template void read_elements(const Tensor&, int64_t*, uint64_t);
template void read_elements(const Tensor&, uint64_t*, uint64_t);

std::vector<std::string_view> read_strings(const Tensor& tensor) {
  std::vector<std::string_view> strings;
  each_data_field(tensor, [&](Reader& r, const Field& f, const DataField& field) {
    strings.push_back(r.bytes(f, field.name));
  });
  return strings;
}

}  // namespace sdx
