"""onnxruntime's lists of operator schemas and kernels, from the declarations in ops/."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import ClassVar, Final

from sardonyx.base.records import field, frozen
from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import ALL, DType
from sardonyx.graph.op import GRADIENT, INTERNAL, Attr, Op, Slot
from sardonyx.ops import all_ops
from sardonyx.providers import CPU, available

_INT_MAX: Final = 2**31 - 1  # no upper limit: of versions, inputs and outputs
_HIDDEN_DOMAINS: Final = (INTERNAL, GRADIENT)


class AttrType(IntEnum):
    """Types of attributes, with the values of onnx.AttributeProto."""

    FLOAT = 1
    INT = 2
    STRING = 3
    TENSOR = 4
    GRAPH = 5
    FLOATS = 6
    INTS = 7
    STRINGS = 8
    TENSORS = 9
    GRAPHS = 10
    SPARSE_TENSOR = 11
    SPARSE_TENSORS = 12


_KINDS: Final = {
    "int": AttrType.INT, "float": AttrType.FLOAT, "bytes": AttrType.STRING, "ints": AttrType.INTS,
    "floats": AttrType.FLOATS, "strings": AttrType.STRINGS, "tensor": AttrType.TENSOR,
    "tensors": AttrType.TENSORS, "graph": AttrType.GRAPH, "sparse": AttrType.SPARSE_TENSOR,
}  # fmt: skip


class FormalParameterOption(IntEnum):
    """Whether a parameter is required, optional or variadic."""

    Single = 0
    Optional = 1
    Variadic = 2


class SupportType(IntEnum):
    """Whether an op is experimental."""

    COMMON = 0
    EXPERIMENTAL = 1


@frozen
class Attribute:
    """An attribute of an op."""

    name: str
    type: AttrType | None
    required: bool
    description: str = ""
    _default_value: object = None  # the Python value, not an AttributeProto


@frozen
class FormalParameter:
    """An input or output of an op."""

    name: str
    types: set[str]
    typeStr: str  # noqa: N815 - onnxruntime's name
    option: FormalParameterOption
    isHomogeneous: bool = True  # noqa: N815
    description: str = ""


@frozen
class TypeConstraintParam:
    """The types that a type variable allows."""

    type_param_str: str
    allowed_type_strs: list[str]
    description: str = ""


@frozen
class OpSchema:
    """The schema of an op in its newest version, to which nodes are upgraded while loading."""

    AttrType: ClassVar = AttrType
    Attribute: ClassVar = Attribute
    FormalParameter: ClassVar = FormalParameter
    FormalParameterOption: ClassVar = FormalParameterOption
    SupportType: ClassVar = SupportType
    TypeConstraintParam: ClassVar = TypeConstraintParam

    name: str
    domain: str
    since_version: int
    doc: str
    attributes: dict[str, object]
    inputs: list[object]
    outputs: list[object]
    type_constraints: list[object]
    min_input: int
    max_input: int
    min_output: int
    max_output: int
    has_type_and_shape_inference_function: bool
    deprecated: bool = False
    support_level: object = SupportType.COMMON
    file: str = ""
    line: int = 0

    @staticmethod
    def is_infinite(number: int) -> bool:
        """Return whether a number of inputs or outputs means any number."""
        return number == _INT_MAX


@frozen
class KernelDef:
    """An op that a provider runs, with its types."""

    op_name: str
    domain: str
    provider: str
    version_range: tuple[int, int]
    type_constraints: dict[str, list[str]] = field(default_factory=dict)


schemadef: Final = SimpleNamespace(OpSchema=OpSchema)
opkernel: Final = SimpleNamespace(KernelDef=KernelDef)


def get_all_operator_schema() -> list[OpSchema]:
    """Return the schema of every op, in its newest version only."""
    return [_schema(op) for op in all_ops() if op.domain not in _HIDDEN_DOMAINS]


def get_all_opkernel_def() -> list[KernelDef]:
    """Return every op as a kernel of the CPU provider: native, or the numpy reference."""
    kernels = []
    for op in all_ops():
        if op.domain not in _HIDDEN_DOMAINS:
            types = {variable: _type_names(types) for variable, types in op.types.items()}
            kernels.append(KernelDef(op.name, op.domain, CPU, (op.since, _INT_MAX), types))
    return kernels


def get_registered_ep_kernel_defs(ep_name: str) -> list[KernelDef]:
    """Return the kernels of one provider."""
    if ep_name not in available():
        raise ValueFault(f"there is no provider {ep_name!r}; available: {', '.join(available())}")
    return get_all_opkernel_def()


def _schema(op: Op) -> OpSchema:
    min_input, max_input = _arity(op.inputs)
    min_output, max_output = _arity(op.outputs)
    return OpSchema(
        name=op.name,
        domain=op.domain,
        since_version=op.since,
        doc=_doc(op),
        attributes={name: _attribute(op, name) for name in op.attrs},
        inputs=[_parameter(op, slot) for slot in op.inputs],
        outputs=[_parameter(op, slot) for slot in op.outputs],
        type_constraints=[TypeConstraintParam(k, _type_names(v)) for k, v in op.types.items()],
        min_input=min_input,
        max_input=max_input,
        min_output=min_output,
        max_output=max_output,
        has_type_and_shape_inference_function=op.infer_rule is not None,
    )


def _arity(slots: Sequence[Slot]) -> tuple[int, int]:
    """Return the least and the largest number of inputs or outputs."""
    least = sum(not (slot.optional or slot.variadic) for slot in slots)
    return least, _INT_MAX if slots and slots[-1].variadic else len(slots)


def _doc(op: Op) -> str:
    rules = (op.infer_rule, op.reference_rule)
    return next((r.__doc__ for r in rules if r is not None and r.__doc__), "")


def _attribute(op: Op, name: str) -> Attribute:
    declared = op.attrs[name]
    default = None if isinstance(declared, Attr) else declared
    kind = _KINDS.get(op.attr_kinds[name])
    return Attribute(name, kind, name in op.required_attrs, "", default)


def _parameter(op: Op, slot: Slot) -> FormalParameter:
    option = FormalParameterOption.Single
    if slot.optional:
        option = FormalParameterOption.Optional
    if slot.variadic:
        option = FormalParameterOption.Variadic
    types = op.types.get(slot.type, ALL) if slot.type else frozenset()
    return FormalParameter(slot.name, set(_type_names(types)), slot.type, option)


def _type_names(types: frozenset[DType]) -> list[str]:
    return [f"tensor({t.ort_name})" for t in sorted(types, key=lambda t: t.onnx)]
