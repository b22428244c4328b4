// ModelProto, GraphProto, NodeProto and FunctionProto. Field numbers are those of onnx.proto;
// unknown fields are skipped, as protobuf does, so that files of later IR versions can be read.
#include "load/decode.h"
#include "load/messages.h"

namespace sdx {
namespace {

constexpr char kEntry[] = "StringStringEntryProto";

OpsetImport decode_opset_import(Reader r) {
  OpsetImport import{};
  for (Field f; r.next(f);) switch (f.number) {
      case 1: import.first = r.utf8(f, "domain"); break;
      case 2: import.second = r.int64(f, "version"); break;
      default: r.skip(f);
    }
  return import;
}

void decode_function(Reader r, Function& function) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1: function.name = r.utf8(f, "name"); break;
      case 4: function.inputs.push_back(r.utf8(f, "input")); break;
      case 5: function.outputs.push_back(r.utf8(f, "output")); break;
      case 6: function.attributes.push_back(r.utf8(f, "attribute")); break;
      case 7: decode_node(r.child(f, "node", "NodeProto"), function.nodes.emplace_back()); break;
      case 9:
        function.opset_imports.push_back(
            decode_opset_import(r.child(f, "opset_import", "OperatorSetIdProto")));
        break;
      case 10: function.domain = r.utf8(f, "domain"); break;
      case 11:
        decode_attribute(r.child(f, "attribute_proto", "AttributeProto"),
                         function.attribute_protos.emplace_back());
        break;
      case 12:
        decode_value_info(r.child(f, "value_info", "ValueInfoProto"),
                          function.value_infos.emplace_back());
        break;
      case 13: function.overload = r.utf8(f, "overload"); break;
      default: r.skip(f);
    }
}

}  // namespace

StringEntry decode_entry(Reader r) {
  StringEntry entry;
  for (Field f; r.next(f);) switch (f.number) {
      case 1: entry.first = r.bytes(f, "key"); break;
      case 2: entry.second = r.bytes(f, "value"); break;
      default: r.skip(f);
    }
  return entry;
}

StringEntry decode_utf8_entry(Reader r) {
  StringEntry entry;
  for (Field f; r.next(f);) switch (f.number) {
      case 1: entry.first = r.utf8(f, "key"); break;
      case 2: entry.second = r.utf8(f, "value"); break;
      default: r.skip(f);
    }
  return entry;
}

void decode_node(Reader r, Node& node) {
  for (Field f; r.next(f);) switch (f.number) {
      case 1: node.inputs.push_back(r.utf8(f, "input")); break;
      case 2: node.outputs.push_back(r.utf8(f, "output")); break;
      case 3: node.name = r.utf8(f, "name"); break;
      case 4: node.op_type = r.utf8(f, "op_type"); break;
      case 5:
        decode_attribute(r.child(f, "attribute", "AttributeProto"), node.attributes.emplace_back());
        break;
      case 7: node.domain = r.utf8(f, "domain"); break;
      case 8: node.overload = r.utf8(f, "overload"); break;
      case 9: node.metadata.push_back(decode_entry(r.child(f, "metadata_props", kEntry))); break;
      default: r.skip(f);
    }
}

void decode_graph(Reader r, Graph& graph) {
  const auto value_info = [&](const Field& f, const char* name, std::vector<ValueInfo>& into) {
    decode_value_info(r.child(f, name, "ValueInfoProto"), into.emplace_back());
  };
  for (Field f; r.next(f);) switch (f.number) {
      case 1: decode_node(r.child(f, "node", "NodeProto"), graph.nodes.emplace_back()); break;
      case 2: graph.name = r.utf8(f, "name"); break;
      case 5:
        decode_tensor(r.child(f, "initializer", "TensorProto"), graph.initializers.emplace_back());
        break;
      case 10: graph.doc_string = r.bytes(f, "doc_string"); break;
      case 11: value_info(f, "input", graph.inputs); break;
      case 12: value_info(f, "output", graph.outputs); break;
      case 13: value_info(f, "value_info", graph.value_infos); break;
      case 15:
        decode_sparse_tensor(r.child(f, "sparse_initializer", "SparseTensorProto"),
                             graph.sparse_initializers.emplace_back());
        break;
      default: r.skip(f);
    }
}

Model decode_model(std::string_view buffer) {
  Model model;
  Reader r(buffer, "ModelProto");
  for (Field f; r.next(f);) switch (f.number) {
      case 1: model.ir_version = r.int64(f, "ir_version"); break;
      case 2: model.producer_name = r.utf8(f, "producer_name"); break;
      case 3: model.producer_version = r.utf8(f, "producer_version"); break;
      case 4: model.domain = r.utf8(f, "domain"); break;
      case 5: model.model_version = r.int64(f, "model_version"); break;
      case 6: model.doc_string = r.bytes(f, "doc_string"); break;
      case 7:
        if (!model.graph) model.graph.emplace();
        decode_graph(r.child(f, "graph", "GraphProto"), *model.graph);
        break;
      case 8:
        model.opset_imports.push_back(
            decode_opset_import(r.child(f, "opset_import", "OperatorSetIdProto")));
        break;
      case 14: model.metadata.push_back(decode_entry(r.child(f, "metadata_props", kEntry))); break;
      case 25:
        decode_function(r.child(f, "functions", "FunctionProto"), model.functions.emplace_back());
        break;
      default: r.skip(f);
    }
  return model;
}

}  // namespace sdx
