"""Generates Python source for regions: straight-line calls over numbered values.

The source contains no strings of the model: functions, attributes and weights are passed separately
and referred to by number. Calls that depend on sizes alone (shape-only subgraphs) are a separate
function, which runs once for each set of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, Final

from sardonyx.base.records import field, frozen, mutable
from sardonyx.graph.const import Const
from sardonyx.graph.dim import Shape
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import as_outputs
from sardonyx.place.provider import Region

FILE: Final = "<region>"
WeightKey = tuple[Const, str]  # a constant and its layout on the device; empty: contiguous


@frozen(eq=False)
class PackedConstant:
    """An object that is built from constants once they are on the device."""

    keys: tuple[WeightKey | None, ...]
    make: Callable[..., Any]  # from tensors


@frozen
class ConstantArg:
    """A constant operand of a call: a weight on the device, a packed one, or a host object."""

    key: WeightKey | None = None
    host_object: Any = None
    pack: PackedConstant | None = None


@frozen
class GeneratedCall:
    """One generated call; its operands are values, constants or None."""

    node: Node
    function: Callable[..., Any]
    operands: tuple[Value | ConstantArg | None, ...]
    keywords: dict[str, Any]
    shapes: tuple[Shape, ...] | None = None  # output shapes, passed as the keyword `shapes`
    takes_dims: bool = False  # the run's symbolic sizes are the first argument
    is_fixed: bool = False  # depends on sizes alone
    shares: tuple[tuple[Value, Value], ...] = ()  # (input, output) pairs that may alias
    returns_one: bool = True


@mutable
class GeneratedSource:
    """The source text of a region's functions, and the tables it indexes by number."""

    text: str = ""
    objects: list[Any] = field(
        default_factory=list
    )  # named k0, k1, ...: functions, attributes, host constants
    weights: list[WeightKey] = field(default_factory=list)  # w0, ...
    packs: list[PackedConstant] = field(default_factory=list)  # p0, ...
    shapes: list[tuple[Shape, ...]] = field(default_factory=list)  # s0, ...
    # h0, ...: pairs (input, output) that a call computes in place.
    shared: list[tuple[tuple[Value, Value], ...]] = field(default_factory=list)
    nodes_by_line: dict[int, Node] = field(default_factory=dict)

    def code(self) -> CodeType:
        """Return the compiled text."""
        return compile(self.text, FILE, "exec")


class SourceWriter:
    """Generates the source of one region."""

    def __init__(self, region: Region, calls: Sequence[GeneratedCall]) -> None:
        self._region = region
        self._calls = calls
        self._source = GeneratedSource()
        self._names: dict[Value, str] = {}
        self._numbers: dict[int, int] = {}  # numbers of objects, by id
        self._weights: dict[WeightKey, int] = {}
        self._text: list[str] = []

    def source(self) -> GeneratedSource:
        """Return the generated source."""
        source, region = self._source, self._region
        fixed = [call for call in self._calls if call.is_fixed]
        varying = [call for call in self._calls if not call.is_fixed]
        fixed_values = self._fixed_values(fixed, varying)
        # Parameters: i inputs, s shapes, f fixed values, d symbolic sizes, h whether calls share.
        body = self._function(
            "body",
            "i, s, f, d, h",
            varying,
            region.inputs,
            fixed_values,
            self._tuple(region.outputs),
        )
        first = self._function("fixed", "s, d", fixed, (), (), self._tuple(fixed_values))
        head = ["def make(k, w, p):"]
        for name, objects in (("k", source.objects), ("w", source.weights), ("p", source.packs)):
            head += self._unpack_line(name, len(objects))
        self._text = head
        for lines in (first, body):
            for text, node in lines:
                self._text.append("    " + text)
                if node is not None:
                    source.nodes_by_line[len(self._text)] = node
        self._text.append("    return fixed, body")
        source.text = "\n".join(self._text) + "\n"
        return source

    def _fixed_values(
        self, fixed: list[GeneratedCall], varying: list[GeneratedCall]
    ) -> list[Value]:
        """Return the values that the fixed function computes for the body."""
        computed = {v for call in fixed for v in call.node.outputs}
        read = [v for call in varying for v in call.operands if isinstance(v, Value)]
        return list(dict.fromkeys(v for v in (*read, *self._region.outputs) if v in computed))

    def _unpack_line(self, name: str, count: int) -> list[str]:
        if not count:
            return []
        return [f"    {', '.join(f'{name}{i}' for i in range(count))}, = {name}"]

    def _function(
        self,
        name: str,
        arguments: str,
        calls: list[GeneratedCall],
        inputs: Sequence[Value],
        fixed_values: Sequence[Value],
        result: str,
    ) -> list[tuple[str, Node | None]]:
        text: list[tuple[str, Node | None]] = [(f"def {name}({arguments}):", None)]
        for parameter, values in (("i", inputs), ("f", fixed_values)):
            if values:
                names = ", ".join(self._name(v) for v in values)
                text.append((f"    {names}, = {parameter}", None))
        # Values are deleted after their last use, so that their memory can be reused.
        alive = set(self._region.outputs) | set(fixed_values)
        last = {v: call for call in calls for v in call.operands if isinstance(v, Value)}
        for call in calls:
            text.append((f"    {self._call(call)}", call.node))
            read = [v for v in call.operands if isinstance(v, Value)]
            dead = [v for v in dict.fromkeys((*read, *call.node.outputs)) if v not in alive]
            dead = [v for v in dead if last.get(v, call) is call]
            if name == "body" and dead:
                text.append((f"    del {', '.join(map(self._name, dead))}", None))
        return [*text, (f"    return {result}", None)]

    def _call(self, call: GeneratedCall) -> str:
        outputs = ", ".join(self._name(v) for v in call.node.outputs)
        target = outputs if call.returns_one else f"{outputs}, *_"
        arguments = ["d"] if call.takes_dims else []
        arguments += [self._operand(v) for v in call.operands]
        arguments += [f"{k}={self._object(v)}" for k, v in call.keywords.items()]
        if call.shapes is not None:
            arguments.append(f"shapes=s[{len(self._source.shapes)}]")
            self._source.shapes.append(call.shapes)
        if call.shares:
            arguments.append(f"shares=h[{len(self._source.shared)}]")
            self._source.shared.append(call.shares)
        text = f"{self._object(call.function)}({', '.join(arguments)})"
        return f"{target} = {text if call.returns_one else f'{self._object(as_outputs)}({text})'}"

    def _operand(self, operand: Value | ConstantArg | None) -> str:
        if operand is None:
            return "None"
        if isinstance(operand, Value):
            return self._name(operand)
        if operand.pack is not None:
            self._source.packs.append(operand.pack)
            return f"p{len(self._source.packs) - 1}"
        return (
            self._object(operand.host_object) if operand.key is None else self._weight(operand.key)
        )

    def _object(self, host_object: Any) -> str:
        # Small literals are inline; everything else is a variable of the enclosing function.
        if host_object is None or isinstance(host_object, bool):
            return str(host_object)
        if isinstance(host_object, int):
            return str(int(host_object))
        number = self._numbers.setdefault(id(host_object), len(self._source.objects))
        if number == len(self._source.objects):
            self._source.objects.append(host_object)
        return f"k{number}"

    def _weight(self, key: WeightKey) -> str:
        number = self._weights.setdefault(key, len(self._weights))
        if number == len(self._source.weights):
            self._source.weights.append(key)
        return f"w{number}"

    def _name(self, value: Value) -> str:
        return self._names.setdefault(value, f"v{len(self._names)}")

    def _tuple(self, values: Iterable[Value]) -> str:
        return "(" + "".join(f"{self._name(v)}, " for v in values) + ")"
