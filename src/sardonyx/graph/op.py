"""Op declarations: schema, inference rule, numpy reference, decomposition and gradient of an op."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InternalError
from sardonyx.graph.dtype import ALL, DType
from sardonyx.graph.fact import AnyFact

ONNX: Final = ""  # the domain of the standard ops
ML: Final = "ai.onnx.ml"
MICROSOFT: Final = "com.microsoft"
PREVIEW: Final = "ai.onnx.preview"
TRAINING: Final = "ai.onnx.preview.training"
INTERNAL: Final = "sardonyx"  # ops that lowering introduces
GRADIENT: Final = "sardonyx.train"  # ops of gradient graphs that standard ops cannot express

# Integer attributes that are bools in every op: 0 is false, and any other number is true.
_FLAGS: Final = frozenset((
    "align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box", "channels_last",
    "count_include_pad", "detect_negative", "detect_positive", "do_rotary", "exclude_outside",
    "exclusive", "fmod", "input_forget", "interleaved", "inverse", "is_bidirectional",
    "is_case_sensitive", "is_causal", "is_packed_batching", "keepdims", "largest",
    "linear_before_reset", "new_axis", "noop_with_empty_axes", "normalize_routing_weights",
    "one_class", "onesided", "past_present_share_buffer", "periodic", "reverse",
    "rotary_interleaved", "saturate", "select_last_index", "sliding_window_cache", "sorted",
    "training_mode", "transA", "transB", "transBatchA", "transBatchB", "unidirectional", "upper",
    "use_sparse_mixer", "zeros",
))  # fmt: skip

Infer = Callable[..., Any]  # (guards, *facts, **attrs) -> fact or tuple of facts
Reference = Callable[..., Any]  # (*arrays, **attrs) -> array or tuple of arrays
Types = Callable[..., dict[str, DType]]  # (types by name, attrs) -> more types by name
Lowering = Callable[..., Any]  # (node) -> its native calls on the CPU
Gradient = Callable[..., Any]  # (builder, node, *gradients of outputs) -> gradients of inputs
Build = Callable[..., Any]  # (builder, node) -> the outputs of the node, computed by other ops


def always(node: Any) -> bool:
    """True for every node."""
    return True


@frozen
class Decomposition:
    """An op in terms of other ops."""

    build: Build
    when: Callable[[Any], bool]  # which nodes lowering replaces; kernels compute the others


@frozen
class Attr:
    """An attribute without a default value: its kind, and whether it must be there."""

    # int, float, bytes, ints, floats, strings, tensor, tensors, graph, type, sparse, or "array "
    # and a list kind
    kind: str
    required: bool = True


def optional(kind: str) -> Attr:
    """Declare an attribute that is None when absent."""
    return Attr(kind, required=False)


def required(kind: str) -> Attr:
    """Declare an attribute that every node must have."""
    return Attr(kind)


def array(kind: str = "floats") -> Attr:
    """Declare a long list, kept as a numpy array (float32, int64) or a list of strings."""
    return Attr(f"array {kind}", required=False)


def kind_of(spec: Any) -> str:
    """Return the kind of an attribute from its declaration: an Attr, or its default value."""
    if isinstance(spec, Attr):
        return spec.kind.removeprefix("array ")
    if isinstance(spec, tuple):
        return {"float": "floats", "bytes": "strings"}.get(kind_of(spec[0]) if spec else "", "ints")
    return "float" if isinstance(spec, float) else "bytes" if isinstance(spec, bytes) else "int"


@frozen
class Slot:
    """One formal input or output."""

    name: str
    type: str  # a key of the op's types; empty if the value need not be a tensor
    optional: bool
    variadic: bool


_NONE: Final[frozenset[str]] = frozenset()  # of an op without attributes


def _positions(slots: Sequence[Slot], names: Container[str]) -> tuple[int, ...]:
    """Return the positions of the slots with these names."""
    return tuple(i for i, s in enumerate(slots) if s.name in names)


def _arrays(attrs: Mapping[str, Any]) -> frozenset[str]:
    """Return the attributes that are kept as arrays."""
    return frozenset(n for n, a in attrs.items() if isinstance(a, Attr) and a.kind[:6] == "array ")


def _flags(kinds: Mapping[str, str]) -> frozenset[str]:
    """Return the attributes, of these kinds, that are bools."""
    return frozenset(n for n, kind in kinds.items() if kind == "int" and n in _FLAGS)


def _defaults(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default values of all attributes that a node need not have."""
    return {
        name: None if isinstance(a, Attr) else a
        for name, a in attrs.items()
        if not (isinstance(a, Attr) and a.required)
    }


class Op:
    """One operator in its newest supported version; loading upgrades older nodes to it."""

    is_custom: ClassVar[bool] = False  # whether a user declared it

    __slots__ = (
        "array_attrs", "attr_kinds", "attrs", "decomposition", "defaults", "domain", "flags",
        "gradient_rule", "has_bodies", "infer_rule", "inputs", "is_pure", "key", "lowering_rule",
        "max_inputs", "min_inputs", "name", "outputs", "reference_rule", "required_attrs", "since",
        "singles", "symbolic_rule", "takes_unranked", "type_rule", "types", "updates",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - the items of a schema, passed by name
        self,
        name: str,
        since: int,
        inputs: str,
        outputs: str,
        *,
        attrs: Mapping[str, Any] | None = None,
        types: Mapping[str, frozenset[DType]] | None = None,
        domain: str = ONNX,
        unranked: bool = False,
        pure: bool = True,
        singles: str = "",
        updates: Mapping[int, int] | None = None,
    ) -> None:
        """`inputs` and `outputs` are names with a type after a colon: "x:T w:T b:T?" or "xs:T*".

        `?` marks an optional slot, `*` a variadic one. `types` has the element types of each type
        variable; one that is missing allows any. A slot without a colon allows any value, tensor
        or not. `unranked`: the inference rule handles inputs of unknown rank. `singles` names the
        inputs of one element, of whatever shape: kernels read their first element. `updates` has
        the outputs that are written over an input of the model, by their positions; such an op
        is not pure.
        """
        self.name: Final = name
        self.since: Final = since
        self.domain: Final = domain
        self.key: Final = domain, name  # of `sardonyx.ops.lookup`
        self.inputs, self.min_inputs, self.max_inputs = _slots(inputs)
        self.outputs: Final = _slots(outputs)[0]
        self.attrs: Final = dict(attrs or {})
        self.types: Final = dict(types or {})
        self.takes_unranked: Final = unranked
        self.singles: Final = _positions(self.inputs, singles.split()) if singles else ()
        self.updates: Final = dict(updates or {})
        # Deterministic, without side effects: may be folded and merged.
        self.is_pure: Final = pure and not updates
        self.attr_kinds: Final = {name: kind_of(spec) for name, spec in self.attrs.items()}
        self.has_bodies: Final = "graph" in self.attr_kinds.values()
        self.defaults: Final = _defaults(self.attrs)
        self.array_attrs: Final = _arrays(self.attrs) if self.attrs else _NONE
        self.flags: Final = _flags(self.attr_kinds) if self.attrs else _NONE
        self.required_attrs: Final = self.attrs.keys() - self.defaults.keys()
        self.infer_rule: Infer | None = None
        self.reference_rule: Reference | None = None
        self.symbolic_rule: Reference | None = None
        self.type_rule: Types | None = None
        self.lowering_rule: Lowering | None = None  # for custom ops with native code
        self.decomposition: Decomposition | None = None
        # Set by the module gradient.py of the op's family, which inference sessions do not import.
        # A decomposition here is differentiated instead of the op; lowering does not use it.
        self.gradient_rule: Gradient | Decomposition | None = None

    def infer(self, rule: Infer) -> Infer:
        """Decorator: the rule for facts of the outputs from facts of the inputs."""
        self.infer_rule = rule
        return rule

    def reference(self, rule: Reference) -> Reference:
        """Decorator: the op in plain numpy."""
        self.reference_rule = rule
        return rule

    def symbolic(self, rule: Reference) -> Reference:
        """Decorator: the op on object arrays of symbolic sizes; None if the result is unknown.

        Ops that only move elements use their reference: `gather.symbolic(gather.reference_rule)`.
        """
        self.symbolic_rule = rule
        return rule

    def typed(self, rule: Types) -> Types:
        """Decorator: the types of outputs that attributes determine, for inputs of unknown rank."""
        self.type_rule = rule
        return rule

    def decompose(
        self, build: Build | None = None, *, when: Callable[[Any], bool] = always
    ) -> Build:
        """Decorator: the outputs of a node as other ops (`sardonyx.ops.decomposition`).

        Lowering replaces each node for which `when` holds. Gradients of ops without a rule pass
        through the decomposition.
        """
        if build is None:
            return partial(self.decompose, when=when)
        self.decomposition = Decomposition(build, when)
        return build

    def gradient(self, rule: Gradient) -> Gradient:
        """Decorator: the rule that builds gradients of the inputs from those of the outputs."""
        self.gradient_rule = rule
        return rule

    @property
    def n_required_outputs(self) -> int:
        """The number of outputs that a node has whether or not the model names them."""
        return sum(not s.optional and not s.variadic for s in self.outputs)

    def input_slot(self, position: int) -> Slot:
        """Return the formal input at a position."""
        return self.inputs[min(position, len(self.inputs) - 1)]

    def named(self, inputs: Sequence[Any]) -> SimpleNamespace:
        """Return a node's inputs (facts, arrays or values) by the names of the declaration."""
        return SimpleNamespace(**{s.name: x for s, x in zip(self.inputs, inputs, strict=True)})

    def run(self, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the results of the reference as a sequence of arrays."""
        if self.reference_rule is None:
            raise InternalError(f"{self.name} has no reference")
        absent = [None] * self.n_absent(len(arrays))
        return as_outputs(self.reference_rule(*arrays, *absent, **attrs))

    def n_absent(self, n_inputs: int) -> int:
        """Return how many trailing formal inputs are absent in a node with `n_inputs` inputs."""
        return 0 if self.max_inputs is None else len(self.inputs) - n_inputs

    def __repr__(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name


def contrib_op(name: str, inputs: str, outputs: str, **declaration: Any) -> Op:
    """Declare an op of com.microsoft; all of them have version 1."""
    return Op(name, 1, inputs, outputs, domain=MICROSOFT, **declaration)


def internal_op(name: str, inputs: str, outputs: str, **declaration: Any) -> Op:
    """Declare an op that only lowering and passes create."""
    return Op(name, 1, inputs, outputs, domain=INTERNAL, **declaration)


def as_outputs(result: Any) -> Sequence[Any]:
    """Return the results of a reference as a tuple of arrays."""
    if isinstance(result, np.ndarray):
        return (result,)
    results = result if isinstance(result, tuple) else (result,)
    return tuple(np.asarray(r) if isinstance(r, np.generic) else r for r in results)


def as_facts(result: Any) -> Sequence[AnyFact]:
    """Return the result of an inference rule as a sequence."""
    return result if isinstance(result, (tuple, list)) else (result,)


@cache  # many ops have the same slots
def _slots(text: str) -> tuple[tuple[Slot, ...], int, int | None]:
    """Return slots, the number of them up to the last required one, and the most values."""
    slots = []
    for word in text.split():
        suffix = word[-1] if word[-1] in "?*" else ""
        name, _, type_ = word.removesuffix(suffix).partition(":")
        slots.append(Slot(name, type_, suffix == "?", suffix == "*"))
    needed = [i for i, s in enumerate(slots) if not s.optional and not s.variadic]
    is_variadic = bool(slots) and slots[-1].variadic
    n_required = needed[-1] + 1 if needed else 0
    return tuple(slots), n_required, None if is_variadic else len(slots)


def allowed(op: Op, slot: Slot) -> frozenset[DType]:
    """Return the element types that a slot allows."""
    return op.types.get(slot.type, ALL)
