// Registers AttributeRecord and NodeRecord.
#include <algorithm>

#include "bind/convert.h"
#include "bind/numbers.h"
#include "bind/register.h"
#include "load/records.h"

namespace sdx {
namespace {

using AttributeRef = Ref<Attribute>;

template <class T>
nb::object array_of(const std::vector<T>& items) {
  return numbers<T>(items.size(), [&](T* out, uint64_t) { std::ranges::copy(items, out); });
}

bool is_list(int32_t type) {
  return type == kTensors || type == kGraphs || type == kSparseTensors || type == kTypes;
}

// Converts the value of an attribute to Python, by alternative of Attribute::Value.
struct ToPython {
  const AttributeRef& owner;

  nb::object operator()(std::monostate) const { return nb::none(); }
  nb::object operator()(float x) const { return nb::float_(x); }
  nb::object operator()(int64_t x) const { return nb::int_(x); }
  nb::object operator()(std::string_view x) const { return to_bytes(x); }
  nb::object operator()(const std::vector<float>& x) const { return array_of(x); }
  nb::object operator()(const std::vector<int64_t>& x) const { return array_of(x); }
  nb::object operator()(const std::vector<std::string_view>& x) const {
    return list_of(x, to_bytes);
  }

  template <class T>
  nb::object operator()(const std::vector<T>& x) const {
    // A vector of one is a single value or a list of one: the attribute's type decides.
    if (is_list(owner->type)) return records(owner, x);
    return x.empty() ? nb::none() : nb::cast(owner.member(x.front()));
  }
};

void bind_attribute(nb::module_& m) {
  nb::class_<AttributeRef>(m, "AttributeRecord", "An AttributeProto.")
      .def_prop_ro(
          "name", [](const AttributeRef& r) { return to_str(r->name); },
          nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "ref_attr_name", [](const AttributeRef& r) { return to_str(r->ref_attr_name); },
          nb::sig("def ref_attr_name(self) -> str"),
          "The attribute of the enclosing function that gives the value, or \"\".")
      .def_prop_ro(
          "type", [](const AttributeRef& r) { return r->type; },
          "AttributeProto.AttributeType, deduced from the value when the file leaves it out.")
      .def_prop_ro(
          "value", [](const AttributeRef& r) { return std::visit(ToPython{r}, r->value); },
          nb::sig("def value(self) -> int | float | bytes | TensorRecord | GraphRecord | "
                  "SparseTensorRecord | TypeRecord | numpy.typing.NDArray[numpy.float32] | "
                  "numpy.typing.NDArray[numpy.int64] | list[bytes] | list[TensorRecord] | "
                  "list[GraphRecord] | list[SparseTensorRecord] | list[TypeRecord] | None"),
          "By `type`; None for a reference and where the file gives no value.");
}

bool has_bodies(const Node& node) {
  for (const Attribute& a : node.attributes)
    if (std::holds_alternative<std::vector<Graph>>(a.value)) return true;
  return false;
}

// The tensor of a Constant node that has nothing but it; null for other nodes.
const Tensor* constant_of(const Node& node) {
  if (node.op_type != "Constant" || !(node.domain.empty() || node.domain == "ai.onnx"))
    return nullptr;
  if (!node.overload.empty() || !node.inputs.empty()) return nullptr;
  if (node.outputs.size() != 1 || node.outputs[0].empty() || node.attributes.size() != 1)
    return nullptr;
  const Attribute& a = node.attributes[0];
  if (a.name != "value" || a.type != kTensor || !a.ref_attr_name.empty()) return nullptr;
  const auto* tensors = std::get_if<std::vector<Tensor>>(&a.value);
  return tensors && tensors->size() == 1 ? tensors->data() : nullptr;
}

using NodeRef = Ref<Node>;

void bind_names(nb::class_<NodeRef>& node) {
  node.def_prop_ro(
          "op_type", [](const NodeRef& r) { return to_str(r->op_type); },
          nb::sig("def op_type(self) -> str"))
      .def_prop_ro(
          "domain", [](const NodeRef& r) { return to_str(r->domain); },
          nb::sig("def domain(self) -> str"))
      .def_prop_ro(
          "overload", [](const NodeRef& r) { return to_str(r->overload); },
          nb::sig("def overload(self) -> str"))
      .def_prop_ro(
          "name", [](const NodeRef& r) { return to_str(r->name); },
          nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "inputs", [](const NodeRef& r) { return list_of(r->inputs, to_str); },
          nb::sig("def inputs(self) -> list[str]"), "Value names; \"\" is an input left out.")
      .def_prop_ro(
          "outputs", [](const NodeRef& r) { return list_of(r->outputs, to_str); },
          nb::sig("def outputs(self) -> list[str]"), "Value names; \"\" is an output left out.");
}

}  // namespace

void bind_nodes(nb::module_& m) {
  bind_attribute(m);
  nb::class_<NodeRef> node(m, "NodeRecord", "A NodeProto.");
  bind_names(node);
  node.def_prop_ro(
          "attributes", [](const NodeRef& r) { return records(r, r->attributes); },
          nb::sig("def attributes(self) -> list[AttributeRecord]"))
      .def_prop_ro(
          "has_bodies", [](const NodeRef& r) { return has_bodies(*r); },
          nb::sig("def has_bodies(self) -> bool"), "Whether an attribute holds a graph.")
      .def_prop_ro(
          "constant",
          [](const NodeRef& r) -> nb::object {
            const Tensor* tensor = constant_of(*r);
            if (!tensor) return nb::none();
            return nb::make_tuple(to_str(r->outputs[0]), r.member(*tensor));
          },
          nb::sig("def constant(self) -> tuple[str, TensorRecord] | None"),
          "Output and tensor of a Constant node that has nothing else; None for other nodes.")
      .def_prop_ro(
          "metadata", [](const NodeRef& r) { return string_pairs(r->metadata); },
          nb::sig("def metadata(self) -> list[tuple[str, str]]"));
}

}  // namespace sdx
