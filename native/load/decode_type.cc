// TypeProto and ValueInfoProto.
#include "load/messages.h"

namespace sdx {
namespace {

void decode_dim(Reader r, Dim& dim) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1: dim.size = r.int64(f, "dim_value"); break;
      case 2:
        if (const std::string_view param = r.utf8(f, "dim_param"); param.empty())
          dim.size = std::monostate{};
        else
          dim.size = param;
        break;
      case 3: dim.denotation = r.utf8(f, "denotation"); break;
      default: r.skip(f);
    }
}

void decode_shape(Reader r, std::vector<Dim>& shape) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1:
        decode_dim(r.child(f, "dim", "TensorShapeProto.Dimension"), shape.emplace_back());
        break;
      default: r.skip(f);
    }
}

// TypeProto.Tensor and TypeProto.SparseTensor.
void decode_tensor_type(Reader r, Type& type) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1: type.elem_type = r.int32(f, "elem_type"); break;
      case 2:
        if (!type.shape) type.shape.emplace();
        decode_shape(r.child(f, "shape", "TensorShapeProto"), *type.shape);
        break;
      default: r.skip(f);
    }
}

void decode_elem(Reader r, Type& type) {
  if (!type.elem) type.elem = std::make_unique<Type>();
  decode_type(r, *type.elem);
}

// TypeProto.Sequence and TypeProto.Optional.
void decode_wrapper_type(Reader r, Type& type) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1: decode_elem(r.child(f, "elem_type", "TypeProto"), type); break;
      default: r.skip(f);
    }
}

void decode_map_type(Reader r, Type& type) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1: type.key_type = r.int32(f, "key_type"); break;
      case 2: decode_elem(r.child(f, "value_type", "TypeProto"), type); break;
      default: r.skip(f);
    }
}

// The kinds are one oneof: naming another one drops what was read for the first.
Type& become(Type& type, TypeKind kind) {
  if (type.kind != kind) type = Type{.kind = kind, .shape = {}, .elem = {}};
  return type;
}

}  // namespace

void decode_type(Reader r, Type& type) {
  using enum TypeKind;
  for (Field f; r.next(f);) switch (f.number) {
      case 1:
        decode_tensor_type(r.child(f, "tensor_type", "TypeProto.Tensor"), become(type, tensor));
        break;
      case 4:
        decode_wrapper_type(r.child(f, "sequence_type", "TypeProto.Sequence"),
                            become(type, sequence));
        break;
      case 5: decode_map_type(r.child(f, "map_type", "TypeProto.Map"), become(type, map)); break;
      case 7:
        r.bytes(f, "opaque_type");
        become(type, opaque);
        break;
      case 8:
        decode_tensor_type(r.child(f, "sparse_tensor_type", "TypeProto.SparseTensor"),
                           become(type, sparse));
        break;
      case 9:
        decode_wrapper_type(r.child(f, "optional_type", "TypeProto.Optional"),
                            become(type, optional));
        break;
      default: r.skip(f);
    }
}

void decode_value_info(Reader r, ValueInfo& info) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1: info.name = r.utf8(f, "name"); break;
      case 2:
        if (!info.type) info.type.emplace();
        decode_type(r.child(f, "type", "TypeProto"), *info.type);
        break;
      default: r.skip(f);
    }
}

}  // namespace sdx
