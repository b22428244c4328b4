"""Parses the text form of a graph, which `graph/show.py` prints, for tests, dumps and errors.

    in x: f32[B,8]
    const w: f32[8,4]            # large constants have no elements here; parse generates them
    a = Div(x, 1.4142135)
    y, mask = Dropout(a, 0.5, seed=1)
    z = com.microsoft.Gelu(y)
    s = Neg(z) @priority=10 @backward
    r = If(c) { then_branch: { t = Neg(z) out t } else_branch: { out z } }
    out r

A literal operand has the type of the operands with the same type variable, else the one from
`literal_type`; `[1, 2]:i32` specifies another. `_` is an absent input or an output without readers.
Names that are not identifiers are quoted. Line breaks are insignificant: a statement ends where the
next begins.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import located
from sardonyx.graph.const import ArrayConst, Const
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BOOL, STRING, DType
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import MAX_PRIORITY, Attrs, Graph, Node, Value
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import infer, infer_node
from sardonyx.graph.op import Attr, Op
from sardonyx.graph.show import LEAVES, attr_kind, literal_type, show
from sardonyx.load.graph_reader import NUMBERS, Reader
from sardonyx.ops import lookup

__all__ = ["parse", "parse_size", "show"]

MAX_COUNT: Final = 2**31  # elements of a generated constant


def parse(text: str) -> Graph:
    """Return the inferred graph of a text; errors in the text name the line."""
    parser = _Parser(text)
    graph = Graph()
    parser.block(graph, {}, end="")
    infer(graph)
    return graph


def parse_size(text: str) -> Size:
    """Return the size of a formula over names."""
    parser = Reader(text)
    size = parser.size()
    parser.expect("")
    return size


class GeneratedConst(Const):
    """A constant of arbitrary elements, generated from its name and so reproducible."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        super().__init__(dtype, shape)
        self.name: Final = name

    def _load(self) -> Array:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        if self.dtype is STRING:
            return np.array([str(i) for i in range(self.count)], object).reshape(self.shape)
        if self.dtype.kind in ("int", "uint", "bool"):
            return rng.integers(0, 2, self.shape).astype(self.dtype.np)
        return rng.standard_normal(self.shape, np.float32).astype(self.dtype.np)

    def describe(self) -> str:
        return "generated"


class _Literal(NamedTuple):
    data: Any  # numbers, bools or strings, or nested lists of them
    dtype: DType | None
    line: int


class _Parser(Reader):
    """Parses the statements of a graph."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._scope = Scope()  # of the facts that determine types of literals

    def block(self, graph: Graph, names: dict[str, Value], end: str) -> None:
        """Parse the statements of one graph, up to its end."""
        graph_outputs: list[Value] = []
        while not self.accept(end):
            if self.accept("in"):
                self._input(graph, names)
            elif self.accept("const"):
                self._constant(names)
            elif self.accept("out"):
                graph_outputs.append(self._defined(names))
                while self.accept(","):
                    graph_outputs.append(self._defined(names))
            elif self.next.kind == "":
                self.fail(f"{end} is missing")
            else:
                self._node(graph, names)
        graph.set_outputs(graph_outputs)

    def _defined(self, names: Mapping[str, Value]) -> Value:
        line, name = self.next.line, self.name()
        if name not in names:
            self.fail(f"nothing before this is called {name}", line)
        return names[name]

    def _define(self, value: Value, names: dict[str, Value], line: int) -> None:
        if value.name in names:
            self.fail(f"{value.name} is defined twice", line)
        names[value.name] = value

    def _input(self, graph: Graph, names: dict[str, Value]) -> None:
        line = self.next.line
        value = Value(self.name())
        if self.accept(":"):
            value.fact = self.fact()
        self._define(value, names, line)
        default = None
        if self.accept("="):
            if not isinstance(value.fact, Fact):
                self.fail(f"{value} is not a tensor, and only those have defaults", line)
            default = self._contents(value.name, value.fact.dtype)
        graph.add_input(value, default)

    def _constant(self, names: dict[str, Value]) -> None:
        line, name = self.next.line, self.name()
        self.expect(":")
        fact = self.fact()
        if not isinstance(fact, Fact) or fact.static is None:
            self.fail(f"the constant {name} must be a tensor of numbers for dims, got {fact}", line)
        if self.accept("="):
            const = self._contents(name, fact.dtype)
            if const.shape != fact.shape:
                self.fail(f"the constant {name} is {fact}, and has {list(const.shape)}", line)
        else:
            const = self._generated(name, fact, line)
        self._define(constant(const, name), names, line)

    def _contents(self, name: str, dtype: DType | None) -> Const:
        """Parse what follows the `=` of a tensor: its elements, or a type to generate them for."""
        line = self.next.line
        if self._is_word():
            return self._generated(name, self.fact(), line)
        literal = self._literal()
        return ArrayConst(
            self._array(literal, dtype or literal.dtype or LEAVES[_leaf(literal.data)])
        )

    def _is_word(self) -> bool:
        return self.next.kind == "word" and self.next.text not in NUMBERS

    def _generated(self, name: str, fact: AnyFact | None, line: int) -> Const:
        shape = fact.static if isinstance(fact, Fact) else None
        if not isinstance(fact, Fact) or shape is None:
            self.fail(f"{name} must be a tensor of numbers for dims, got {fact}", line)
        const = GeneratedConst(name, fact.dtype, shape)
        if const.count > MAX_COUNT:
            self.fail(f"{const.count} elements of {name} are too many to generate", line)
        return const

    def _node(self, graph: Graph, names: dict[str, Value]) -> None:
        line = self.next.line
        results = [Value(self._result())]
        while self.accept(","):
            results.append(Value(self._result()))
        self.expect("=")
        op = self._op()
        operands, attrs = self._arguments(op, names)
        annotations = self._annotations()
        if self.accept("{"):
            self._bodies(op, attrs, names)
        for key, spec in op.attrs.items():
            if isinstance(spec, Attr) and spec.required and key not in attrs:
                self.fail(f"{op} needs the attribute {key}", line)
        inputs = self._values(op, operands)
        node = graph.add(op, inputs, {**op.defaults, **attrs}, results, results[0].name)
        node.annotations = annotations
        for value in results:
            if value.name:
                self._define(value, names, line)
        self._infer(node, line)

    def _infer(self, node: Node, line: int) -> None:
        """Infer facts for later literals, unless an input of a body has no fact yet."""
        if all(v is None or v.fact is not None for v in node.reads()):
            with located(line=line):
                infer_node(self._scope, node)

    def _result(self) -> str:
        return "" if self.accept("_") else self.name()

    def _op(self) -> Op:
        token = self.take()
        domain, _, name = token.text.rpartition(".")
        op = lookup(domain, name) if token.kind == "word" else None
        if op is None:
            self.fail(f"there is no op {token.text or 'at the end'}", token.line)
        return op

    def _annotations(self) -> tuple[int, bool]:
        """Parse annotations: `@priority=10`, `@backward`."""
        priority, is_backward = 0, False
        while self.accept("@"):
            token = self.take()
            if token.text == "priority":
                self.expect("=")
                priority = self.data()
                if type(priority) is not int or abs(priority) > MAX_PRIORITY:
                    what = f"a priority is a whole number of 32 bits, not {priority}"
                    self.fail(what, token.line)
            elif token.text == "backward":
                is_backward = True
            else:
                self.fail(f"there is no annotation {token.text or 'at the end'}", token.line)
        return priority, is_backward

    def _bodies(self, op: Op, attrs: Attrs, names: Mapping[str, Value]) -> None:
        while not self.accept("}"):
            line, key = self.next.line, self.name()
            spec = op.attrs.get(key)
            if spec is None or attr_kind(spec) != "graph" or key in attrs:
                self.fail(f"{op} has no body {key} left", line)
            self.expect(":")
            self.expect("{")
            body = attrs[key] = Graph(key)
            self.block(body, dict(names), end="}")

    def _arguments(
        self, op: Op, names: Mapping[str, Value]
    ) -> tuple[list[Value | _Literal | None], Attrs]:
        operands: list[Value | _Literal | None] = []
        attrs: Attrs = {}
        self.expect("(")
        for _ in self.items(")"):
            if self.next.kind == "word" and self.after.text == "=":
                self._attribute(op, attrs)
            elif attrs:
                self.fail("inputs stand before attributes")
            else:
                operands.append(self._operand(names))
        return operands, attrs

    def _operand(self, names: Mapping[str, Value]) -> Value | _Literal | None:
        if self.accept("_"):
            return None
        is_name = self._is_word() or (self.next.kind == "string" and self.after.text != ":")
        return self._defined(names) if is_name else self._literal()

    def _values(self, op: Op, operands: Sequence[Value | _Literal | None]) -> list[Value | None]:
        """Return the operands, with literals as constants."""
        facts = [v.fact if isinstance(v, Value) else None for v in operands]
        typed = [f if isinstance(f, Fact) else None for f in facts]
        values: list[Value | None] = []
        for position, operand in enumerate(operands):
            if isinstance(operand, _Literal):
                if not op.inputs:
                    self.fail(f"{op} takes no inputs", operand.line)
                leaf = _leaf(operand.data)
                dtype = operand.dtype or literal_type(op, position, typed, leaf)
                values.append(constant(ArrayConst(self._array(operand, dtype))))
            else:
                values.append(operand)
        return values

    def _literal(self) -> _Literal:
        line = self.next.line
        data = self.data()
        dtype = self.dtype() if self.accept(":") else None
        return _Literal(data, dtype, line)

    def _array(self, literal: _Literal, dtype: DType) -> Array:
        leaf = _leaf(literal.data)
        fits = {"string": dtype is STRING, "float": dtype.is_float, "bool": dtype is BOOL}
        if not fits.get(leaf, dtype is not STRING or literal.data == []):
            self.fail(f"{literal.data} does not fit {dtype}", literal.line)
        cells = np.float64 if leaf == "float" else object  # objects are exact for any int
        what = f"{literal.data} is not a tensor of {dtype}"
        try:
            array = np.array(literal.data, cells)
            if any(isinstance(cell, list) for cell in array.flat):  # lists of unequal lengths
                self.fail(what, literal.line)
            return array.astype(dtype.np)
        except (ValueError, OverflowError, TypeError):
            self.fail(what, literal.line)

    def _attribute(self, op: Op, attrs: Attrs) -> None:
        key, line = self.take().text, self.next.line
        self.expect("=")
        if key not in op.attrs or key in attrs:
            self.fail(f"{op} has no attribute {key} left", line)
        attrs[key] = self._attribute_value(key, attr_kind(op.attrs[key]))

    def _attribute_value(self, key: str, kind: str) -> Any:
        if kind == "type":
            return self.fact()
        if kind == "tensor":
            return self._contents(key, None)
        line = self.next.line
        if kind == "int" and self._is_word():
            return self.dtype().onnx
        data = self.data()
        try:
            return _ATTRIBUTES[kind](data)
        except (KeyError, ValueError, TypeError, OverflowError, AttributeError):
            self.fail(f"the attribute {key} must be of kind {kind}, got {data!r}", line)


def _leaf(data: Any) -> str:
    """Return the kind of a literal's elements: string, float, bool or int."""
    items = list(_flat(data))
    for kind, name in ((str, "string"), (float, "float")):
        if any(isinstance(i, kind) for i in items):
            return name
    return "bool" if items and all(isinstance(i, bool) for i in items) else "int"


def _flat(data: Any) -> Iterator[Any]:
    if not isinstance(data, list):
        yield data
        return
    for item in data:
        yield from _flat(item)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# Conversions of a literal: of an element by its kind, and to the kind of an attribute.
_ELEMENTS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": operator.index, "bool": operator.index, "float": float, "string": _encoded,
}  # fmt: skip
_ATTRIBUTES: Final[dict[str, Callable[[Any], Any]]] = {
    "int": operator.index,
    "float": float,
    "bytes": _encoded,
    "ints": lambda data: tuple(map(operator.index, data)),
    "floats": lambda data: tuple(map(float, data)),
    "strings": lambda data: tuple(map(_encoded, data)),
    "list": lambda data: tuple(map(_ELEMENTS[_leaf(data)], data)),
    "array ints": lambda data: np.array([*map(operator.index, data)], np.int64),
    "array floats": lambda data: np.array([*map(float, data)], np.float32),
    "array strings": lambda data: [*map(_encoded, data)],
}
