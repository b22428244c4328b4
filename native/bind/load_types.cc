// Registers TypeRecord and ValueInfoRecord.
#include "bind/convert.h"
#include "bind/register.h"
#include "load/records.h"

namespace sdx {
namespace {

// Indexed by TypeKind.
constexpr const char* kKinds[] = {"none", "tensor",   "sparse", "sequence",
                                  "map",  "optional", "opaque"};

nb::object dim_size(const Dim& dim) {
  if (const auto* value = std::get_if<int64_t>(&dim.size)) return nb::int_(*value);
  if (const auto* param = std::get_if<std::string_view>(&dim.size)) return to_str(*param);
  return nb::none();
}

nb::object shape(const Type& type) {
  return type.shape ? tuple_of(*type.shape, dim_size) : nb::none();
}

nb::object denotations(const Type& type) {
  const std::vector<Dim> unknown;
  return tuple_of(type.shape ? *type.shape : unknown,
                  [](const Dim& dim) { return to_str(dim.denotation); });
}

}  // namespace

void bind_types(nb::module_& m) {
  using TypeRef = Ref<Type>;
  nb::class_<TypeRef>(m, "TypeRecord", "A TypeProto.")
      .def_prop_ro(
          "kind", [](const TypeRef& r) { return kKinds[static_cast<size_t>(r->kind)]; },
          "\"tensor\", \"sparse\", \"sequence\", \"map\", \"optional\", \"opaque\", or \"none\" "
          "when unset.")
      .def_prop_ro(
          "elem_type", [](const TypeRef& r) { return r->elem_type; },
          "TensorProto.DataType of a tensor's elements; 0 when absent.")
      .def_prop_ro(
          "key_type", [](const TypeRef& r) { return r->key_type; },
          "TensorProto.DataType of a map's keys; 0 when absent.")
      .def_prop_ro(
          "shape", [](const TypeRef& r) { return shape(*r); },
          nb::sig("def shape(self) -> tuple[int | str | None, ...] | None"),
          "Per dim its size, its name or None; None when the rank is unknown.")
      .def_prop_ro(
          "denotations", [](const TypeRef& r) { return denotations(*r); },
          nb::sig("def denotations(self) -> tuple[str, ...]"), "What each dim stands for.")
      .def_prop_ro(
          "elem",
          [](const TypeRef& r) -> nb::object {
            return r->elem ? nb::cast(r.member(*r->elem)) : nb::none();
          },
          nb::sig("def elem(self) -> TypeRecord | None"),
          "The element type of a sequence or an optional, the value type of a map.");

  using InfoRef = Ref<ValueInfo>;
  nb::class_<InfoRef>(m, "ValueInfoRecord", "A ValueInfoProto.")
      .def_prop_ro(
          "name", [](const InfoRef& r) { return to_str(r->name); },
          nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "type",
          [](const InfoRef& r) -> nb::object {
            return r->type ? nb::cast(r.member(*r->type)) : nb::none();
          },
          nb::sig("def type(self) -> TypeRecord | None"));
}

}  // namespace sdx
