"""Prints a graph as text; `load/graph_text.py` documents the syntax and parses it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.graph.const import Const
from sardonyx.graph.constant_values import const_fact
from sardonyx.graph.dtype import ALL, BOOL, F32, I64, INDEX, STRING, DType, by_onnx
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import Attr, Op, allowed, kind_of

MAX_SHOWN: Final = 16  # elements of a constant; of larger ones only the type is shown
MAX_LISTED: Final = 64  # elements of an attribute
RESERVED: Final = frozenset(("in", "const", "out", "_", "true", "false", "inf", "nan"))
DTYPE_ATTRS: Final = frozenset(("to", "dtype", "output_dtype", "stash_type", "softmax_precision"))

_WORD: Final = re.compile(r"[^\W\d]\w*")
LEAVES: Final = {"int": I64, "float": F32, "bool": BOOL, "string": STRING}


def show(graph: Graph, *, facts: bool = False) -> str:
    """Return the graph as text; with `facts`, each line ends with the facts of its results."""
    return "\n".join(_Printer(graph, facts).lines(graph, _Names(), "")) + "\n"


def attr_kind(spec: Any) -> str:
    """Return the kind of a declared attribute, or `list` if its default is an empty tuple."""
    if isinstance(spec, Attr):
        return spec.kind
    return "list" if spec == () else kind_of(spec)


def literal_type(op: Op, position: int, operands: Sequence[Fact | None], leaf: str) -> DType:
    """Return the type of a literal operand from its leaves and the facts of other operands."""
    if leaf in ("bool", "string"):
        return LEAVES[leaf]
    slot = op.input_slot(position)
    types = allowed(op, slot) if slot.type else ALL
    for i, fact in enumerate(operands):
        if fact is not None and slot.type and op.input_slot(i).type == slot.type:
            return fact.dtype
    if len(types) == 1:
        return next(iter(types))
    if leaf == "int" and types <= INDEX:
        return I64
    first = next((f.dtype for f in operands if f is not None), LEAVES[leaf])
    fits = first in types and (leaf == "int" or first.is_float)
    return first if fits else LEAVES[leaf]


def name_text(name: str) -> str:
    """Return a name, quoted if it is not an identifier or a keyword."""
    return name if _WORD.fullmatch(name) and name not in RESERVED else quoted(name)


def quoted(text: str | bytes) -> str:
    """Return a string literal; bytes that are not UTF-8 survive."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    return '"' + text.encode("unicode_escape").decode().replace('"', '\\"') + '"'


def literal_text(array: Array, dtype: DType) -> str:
    """Return numbers, bools or strings, nested in brackets by dimension."""
    if array.ndim:
        return "[" + ", ".join(literal_text(np.asarray(a), dtype) for a in array) + "]"
    item: Any = array[()]
    if dtype is STRING:
        return quoted(item)
    if dtype is BOOL:
        return "true" if item else "false"
    text = str(item)
    return text + ".0" if dtype.is_float and text.lstrip("-").isdigit() else text


class _Names:
    """The names of the visible values."""

    def __init__(self, outer: _Names | None = None) -> None:
        self.of: dict[int, str] = {} if outer is None else dict(outer.of)
        self.seen: set[str] = set() if outer is None else set(outer.seen)


class _Printer:
    """Prints a graph line by line; values without a unique name get a new one."""

    def __init__(self, graph: Graph, facts: bool) -> None:
        self._facts = facts
        self._taken = {v.name for v in graph.all_values()}
        self._count = 0

    def lines(self, graph: Graph, names: _Names, indent: str) -> Iterator[str]:
        for value in graph.inputs:
            default = graph.defaults.get(value)
            has = "" if default is None else f" = {_default_text(default)}"
            fact = value.fact if value.fact is not None else "?"
            yield f"{indent}in {self._define(value, names)}: {fact}{has}"
        order = graph.sorted_nodes()
        for value in _named_constants(graph, order):
            if id(value) not in names.of:
                yield indent + self._constant(value, names)
        for node in order:
            yield from self._node(node, names, indent)
        if graph.outputs:
            yield f"{indent}out {', '.join(names.of[id(v)] for v in graph.outputs)}"

    def _define(self, value: Value, names: _Names) -> str:
        name = value.name or self._unique_name("v")
        while name in names.seen:
            name = self._unique_name(f"{value.name}_")
        names.seen.add(name)
        names.of[id(value)] = name_text(name)
        return name_text(name)

    def _unique_name(self, stem: str) -> str:
        while (name := f"{stem}{self._count}") in self._taken:
            self._count += 1
        self._taken.add(name)
        return name

    def _constant(self, value: Value, names: _Names) -> str:
        const = value.const
        assert const is not None
        head = f"const {self._define(value, names)}: {value.fact}"
        if _is_short(const):
            return f"{head} = {literal_text(const.read(), const.dtype)}"
        return f"{head}  # {const.describe()}"

    def _node(self, node: Node, names: _Names, indent: str) -> Iterator[str]:
        operands = ", ".join([*_inputs(node, names.of), *_attributes(node)])
        visible = _Names(names) if node.subgraphs else names
        results = [self._define(v, names) if v.name or v.is_used else "_" for v in node.outputs]
        facts = f"  # {', '.join(str(v.fact) for v in node.outputs)}" if self._facts else ""
        head = f"{indent}{', '.join(results)} = {node.op!r}({operands}){_annotations(node)}"
        if not node.subgraphs:
            yield head + facts
            return
        yield f"{head} {{{facts}"
        for key, body in node.subgraphs:
            yield f"{indent}  {key}: {{"
            yield from self.lines(body, _Names(visible), indent + "    ")
            yield f"{indent}  }}"
        yield f"{indent}}}"


def _annotations(node: Node) -> str:
    priority = f" @priority={node.priority}" if node.priority else ""
    return f"{priority} @backward" if node.is_backward else priority


def _default_text(const: Const) -> str:
    return literal_text(const.read(), const.dtype) if _is_short(const) else f"{const_fact(const)}"


def _named_constants(graph: Graph, order: Sequence[Node]) -> Iterator[Value]:
    """Yield constants that are named, large or an output, not all of them once."""
    for node in order:
        for value in node.inputs:
            if value is not None and value.is_const and not _is_literal(value):
                yield value
    yield from (v for v in graph.outputs if v.is_const)


def _is_short(const: Const) -> bool:
    """Return whether a literal can express it: brackets show no dims after one of size 0."""
    has_literal = 0 not in const.shape or const.shape == (0,)
    return has_literal and const.count <= MAX_SHOWN and const.dtype.kind != "complex"


def _is_literal(value: Value) -> bool:
    const = value.const
    return const is not None and value.node is None and not value.name and _is_short(const)


def _inputs(node: Node, names: Mapping[int, str]) -> Iterator[str]:
    as_names = [None if v is None or _is_literal(v) else v.fact for v in node.inputs]
    typed = [f if isinstance(f, Fact) else None for f in as_names]
    for position, value in enumerate(node.inputs):
        if value is None:
            yield "_"
        elif not _is_literal(value):
            yield names[id(value)]
        else:
            const = value.const
            assert const is not None
            text = literal_text(const.read(), const.dtype)
            leaf = const.dtype.kind.removeprefix("u") if const.count else "int"
            natural = literal_type(node.op, position, typed, leaf)
            # A lone string operand would parse as a name.
            plain = natural is const.dtype and not (leaf == "string" and not const.shape)
            yield text if plain else f"{text}:{const.dtype}"


def _attributes(node: Node) -> Iterator[str]:
    for key, value in node.attrs.items():
        spec = node.op.attrs.get(key)
        if value is None or isinstance(value, Graph) or _is_default(spec, value):
            continue
        yield f"{key}={_attribute_text(key, value)}"


def _is_default(spec: Any, value: Any) -> bool:
    return not isinstance(spec, Attr) and type(spec) is type(value) and bool(spec == value)


def _attribute_text(key: str, value: Any) -> str:
    if isinstance(value, Const):
        if not _is_short(value):
            return str(const_fact(value))
        return f"{literal_text(value.read(), value.dtype)}:{value.dtype}"
    if isinstance(value, bytes):
        return quoted(value)
    if isinstance(value, (tuple, list, np.ndarray)):
        shown = [_attribute_text("", v) for v in value[:MAX_LISTED]]
        if len(value) > MAX_LISTED:
            shown.append(f"... {len(value)} in all")
        return f"[{', '.join(shown)}]"
    if key in DTYPE_ATTRS and isinstance(value, int) and (dtype := by_onnx(value)) is not None:
        return dtype.name
    if isinstance(value, AnyFact):
        return str(value)
    return str(int(value)) if isinstance(value, (bool, np.bool_)) else str(value)
