// AttributeProto: one of fourteen kinds of value.
#include <iterator>

#include "load/messages.h"

namespace sdx {
namespace {

// All value fields of the message: `type`, which selects one, may come after them.
struct Fields {
  std::optional<float> f;
  std::optional<int64_t> i;
  std::optional<std::string_view> s;
  std::vector<Tensor> t, tensors;
  std::vector<Graph> g, graphs;
  std::vector<SparseTensor> sparse_tensor, sparse_tensors;
  std::vector<Type> tp, type_protos;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
};

// The record of a non-repeated field: a second occurrence is merged into the first.
template <class T>
T& single(std::vector<T>& records) {
  return records.empty() ? records.emplace_back() : records.front();
}

void decode_messages(Reader& r, const Field& f, Fields& v) {
  switch (f.number) {
    case 5: decode_tensor(r.child(f, "t", "TensorProto"), single(v.t)); break;
    case 6: decode_graph(r.child(f, "g", "GraphProto"), single(v.g)); break;
    case 10: decode_tensor(r.child(f, "tensors", "TensorProto"), v.tensors.emplace_back()); break;
    case 11: decode_graph(r.child(f, "graphs", "GraphProto"), v.graphs.emplace_back()); break;
    case 14: decode_type(r.child(f, "tp", "TypeProto"), single(v.tp)); break;
    case 15:
      decode_type(r.child(f, "type_protos", "TypeProto"), v.type_protos.emplace_back());
      break;
    case 22:
      decode_sparse_tensor(r.child(f, "sparse_tensor", "SparseTensorProto"),
                           single(v.sparse_tensor));
      break;
    case 23:
      decode_sparse_tensor(r.child(f, "sparse_tensors", "SparseTensorProto"),
                           v.sparse_tensors.emplace_back());
      break;
    default: r.skip(f);
  }
}

// The type of an attribute without one, as files of IR version 1 have them.
int32_t deduce_type(const Fields& v) {
  if (v.f) return kFloat;
  if (v.i) return kInt;
  if (v.s) return kString;
  if (!v.t.empty()) return kTensor;
  if (!v.g.empty()) return kGraph;
  if (!v.sparse_tensor.empty()) return kSparseTensor;
  if (!v.tp.empty()) return kType;
  if (!v.floats.empty()) return kFloats;
  if (!v.ints.empty()) return kInts;
  if (!v.strings.empty()) return kStrings;
  if (!v.tensors.empty()) return kTensors;
  if (!v.graphs.empty()) return kGraphs;
  if (!v.sparse_tensors.empty()) return kSparseTensors;
  if (!v.type_protos.empty()) return kTypes;
  return kUndefined;
}

// The value that the type selects. An absent scalar is 0: proto3 writers omit defaults.
Attribute::Value pick(Fields&& v, int32_t type) {
  switch (type) {
    case kFloat: return v.f.value_or(0.0f);
    case kInt: return v.i.value_or(0);
    case kString: return v.s.value_or(std::string_view());
    case kTensor: return std::move(v.t);
    case kGraph: return std::move(v.g);
    case kSparseTensor: return std::move(v.sparse_tensor);
    case kType: return std::move(v.tp);
    case kFloats: return std::move(v.floats);
    case kInts: return std::move(v.ints);
    case kStrings: return std::move(v.strings);
    case kTensors: return std::move(v.tensors);
    case kGraphs: return std::move(v.graphs);
    case kSparseTensors: return std::move(v.sparse_tensors);
    case kTypes: return std::move(v.type_protos);
    default: return std::monostate{};
  }
}

}  // namespace

void decode_attribute(Reader r, Attribute& attribute) {
  Fields v;
  for (Field f; r.next(f);) switch (f.number) {
      case 1: attribute.name = r.utf8(f, "name"); break;
      case 2: v.f = r.float32(f, "f"); break;
      case 3: v.i = r.int64(f, "i"); break;
      case 4: v.s = r.bytes(f, "s"); break;
      case 7: r.fixed<float>(f, "floats", [&](float x) { v.floats.push_back(x); }); break;
      case 8:
        r.varints(f, "ints", [&](uint64_t x) { v.ints.push_back(static_cast<int64_t>(x)); });
        break;
      case 9:
        do v.strings.push_back(r.bytes(f, "strings"));
        while (r.again(f));
        break;
      case 20: attribute.type = r.int32(f, "type"); break;
      case 21: attribute.ref_attr_name = r.utf8(f, "ref_attr_name"); break;
      default: decode_messages(r, f, v);
    }
  if (attribute.type == kUndefined) attribute.type = deduce_type(v);
  if (attribute.ref_attr_name.empty()) attribute.value = pick(std::move(v), attribute.type);
}

}  // namespace sdx
