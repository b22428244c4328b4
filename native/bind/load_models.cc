// Registers GraphRecord, FunctionRecord and ModelRecord.
#include "bind/convert.h"
#include "bind/register.h"
#include "load/records.h"
#include "load/topological_order.h"

namespace sdx {
namespace {

constexpr const char* kSorted = "Whether the nodes are in topological order, bodies included.";

nb::object opset_imports(const std::vector<OpsetImport>& imports) {
  return list_of(imports, [](const OpsetImport& i) -> nb::object {
    return nb::make_tuple(to_str(i.first), i.second);
  });
}

void bind_graph(nb::module_& m) {
  using GraphRef = Ref<Graph>;
  nb::class_<GraphRef>(m, "GraphRecord", "A GraphProto.")
      .def_prop_ro(
          "name", [](const GraphRef& r) { return to_str(r->name); },
          nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "doc_string", [](const GraphRef& r) { return to_str_lossy(r->doc_string); },
          nb::sig("def doc_string(self) -> str"))
      .def_prop_ro(
          "nodes", [](const GraphRef& r) { return records(r, r->nodes); },
          nb::sig("def nodes(self) -> list[NodeRecord]"))
      .def_prop_ro(
          "initializers", [](const GraphRef& r) { return records(r, r->initializers); },
          nb::sig("def initializers(self) -> list[TensorRecord]"))
      .def_prop_ro(
          "is_sorted", [](const GraphRef& r) { return is_sorted(r->nodes); },
          nb::sig("def is_sorted(self) -> bool"), kSorted)
      .def_prop_ro(
          "sparse_initializers",
          [](const GraphRef& r) { return records(r, r->sparse_initializers); },
          nb::sig("def sparse_initializers(self) -> list[SparseTensorRecord]"))
      .def_prop_ro(
          "inputs", [](const GraphRef& r) { return records(r, r->inputs); },
          nb::sig("def inputs(self) -> list[ValueInfoRecord]"))
      .def_prop_ro(
          "outputs", [](const GraphRef& r) { return records(r, r->outputs); },
          nb::sig("def outputs(self) -> list[ValueInfoRecord]"))
      .def_prop_ro(
          "value_infos", [](const GraphRef& r) { return records(r, r->value_infos); },
          nb::sig("def value_infos(self) -> list[ValueInfoRecord]"));
}

void bind_function(nb::module_& m) {
  using FunctionRef = Ref<Function>;
  nb::class_<FunctionRef>(m, "FunctionRecord", "A FunctionProto.")
      .def_prop_ro(
          "domain", [](const FunctionRef& r) { return to_str(r->domain); },
          nb::sig("def domain(self) -> str"))
      .def_prop_ro(
          "name", [](const FunctionRef& r) { return to_str(r->name); },
          nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "overload", [](const FunctionRef& r) { return to_str(r->overload); },
          nb::sig("def overload(self) -> str"))
      .def_prop_ro(
          "inputs", [](const FunctionRef& r) { return list_of(r->inputs, to_str); },
          nb::sig("def inputs(self) -> list[str]"))
      .def_prop_ro(
          "outputs", [](const FunctionRef& r) { return list_of(r->outputs, to_str); },
          nb::sig("def outputs(self) -> list[str]"))
      .def_prop_ro(
          "attributes", [](const FunctionRef& r) { return list_of(r->attributes, to_str); },
          nb::sig("def attributes(self) -> list[str]"), "Names of attributes without a default.")
      .def_prop_ro(
          "attribute_protos", [](const FunctionRef& r) { return records(r, r->attribute_protos); },
          nb::sig("def attribute_protos(self) -> list[AttributeRecord]"),
          "Attributes with their defaults.")
      .def_prop_ro(
          "nodes", [](const FunctionRef& r) { return records(r, r->nodes); },
          nb::sig("def nodes(self) -> list[NodeRecord]"))
      .def_prop_ro(
          "is_sorted", [](const FunctionRef& r) { return is_sorted(r->nodes); },
          nb::sig("def is_sorted(self) -> bool"), kSorted)
      .def_prop_ro(
          "opset_imports", [](const FunctionRef& r) { return opset_imports(r->opset_imports); },
          nb::sig("def opset_imports(self) -> list[tuple[str, int]]"))
      .def_prop_ro(
          "value_infos", [](const FunctionRef& r) { return records(r, r->value_infos); },
          nb::sig("def value_infos(self) -> list[ValueInfoRecord]"));
}

void bind_model(nb::module_& m) {
  using ModelRef = Ref<Model>;
  nb::class_<ModelRef>(m, "ModelRecord", "A ModelProto.")
      .def_prop_ro("ir_version", [](const ModelRef& r) { return r->ir_version; })
      .def_prop_ro("model_version", [](const ModelRef& r) { return r->model_version; })
      .def_prop_ro(
          "producer_name", [](const ModelRef& r) { return to_str(r->producer_name); },
          nb::sig("def producer_name(self) -> str"))
      .def_prop_ro(
          "producer_version", [](const ModelRef& r) { return to_str(r->producer_version); },
          nb::sig("def producer_version(self) -> str"))
      .def_prop_ro(
          "domain", [](const ModelRef& r) { return to_str(r->domain); },
          nb::sig("def domain(self) -> str"))
      .def_prop_ro(
          "doc_string", [](const ModelRef& r) { return to_str_lossy(r->doc_string); },
          nb::sig("def doc_string(self) -> str"))
      .def_prop_ro(
          "opset_imports", [](const ModelRef& r) { return opset_imports(r->opset_imports); },
          nb::sig("def opset_imports(self) -> list[tuple[str, int]]"), "Domain and version.")
      .def_prop_ro(
          "metadata", [](const ModelRef& r) { return string_pairs(r->metadata); },
          nb::sig("def metadata(self) -> list[tuple[str, str]]"))
      .def_prop_ro(
          "graph",
          [](const ModelRef& r) -> nb::object {
            return r->graph ? nb::cast(r.member(*r->graph)) : nb::none();
          },
          nb::sig("def graph(self) -> GraphRecord | None"), "None when the file has none.")
      .def_prop_ro(
          "functions", [](const ModelRef& r) { return records(r, r->functions); },
          nb::sig("def functions(self) -> list[FunctionRecord]"));
}

}  // namespace

void bind_models(nb::module_& m) {
  bind_graph(m);
  bind_function(m);
  bind_model(m);
}

}  // namespace sdx
