"""Regions as Python source: straight-line calls over numbered values, and nothing of the model's.

Functions, attributes and weights travel beside the source, by number. What depends on sizes alone
is a function of its own: a region calls it once for each set of sizes.
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
Key = tuple[Const, str]  # a constant, and the form in which it is wanted


@frozen(eq=False)
class Pack:
    """A thing that is made of constants once they are on the device."""

    keys: tuple[Key | None, ...]
    make: Callable[..., Any]  # of tensors


@frozen
class Arg:
    """A constant operand of a call: on the device in some form, or an object on the host."""

    key: Key | None = None
    thing: Any = None
    pack: Pack | None = None


@frozen
class Line:
    """One call: its operands are values, constants or None."""

    node: Node
    function: Callable[..., Any]
    operands: tuple[Value | Arg | None, ...]
    keywords: dict[str, Any]
    shapes: tuple[Shape, ...] | None = None  # sizes that it is told, as the keyword `shapes`
    takes_dims: bool = False  # the sizes of the run come first
    is_fixed: bool = False  # depends on sizes alone
    shares: tuple[tuple[Value, Value], ...] = ()  # inputs and outputs that may be one memory
    returns_one: bool = True


@mutable
class Source:
    """The text of a region's functions, and what it refers to by number."""

    text: str = ""
    things: list[Any] = field(default_factory=list)  # k: functions, attributes, host constants
    weights: list[Key] = field(default_factory=list)  # w
    packs: list[Pack] = field(default_factory=list)  # p
    shapes: list[tuple[Shape, ...]] = field(default_factory=list)  # s
    shared: list[tuple[tuple[Value, Value], ...]] = field(default_factory=list)  # h, as in lines
    lines: dict[int, Node] = field(default_factory=dict)  # by number in the text

    def code(self) -> CodeType:
        """The text, compiled."""
        return compile(self.text, FILE, "exec")


class Writer:
    """Writes the source of one region."""

    def __init__(self, region: Region, lines: Sequence[Line]) -> None:
        self._region = region
        self._lines = lines
        self._made = Source()
        self._names: dict[Value, str] = {}
        self._numbers: dict[int, int] = {}  # of things, by id
        self._weights: dict[Key, int] = {}
        self._text: list[str] = []

    def source(self) -> Source:
        """Everything."""
        made, region = self._made, self._region
        fixed = [line for line in self._lines if line.is_fixed]
        moving = [line for line in self._lines if not line.is_fixed]
        kept = self._kept(fixed, moving)
        body = self._function(
            "body", "i, s, f, d, h", moving, region.inputs, kept, self._tuple(region.outputs)
        )
        first = self._function("fixed", "s, d", fixed, (), (), self._tuple(kept))
        head = ["def make(k, w, p):"]
        for name, things in (("k", made.things), ("w", made.weights), ("p", made.packs)):
            head += self._unpacked(name, len(things))
        self._text = head
        for lines in (first, body):
            for text, node in lines:
                self._text.append("    " + text)
                if node is not None:
                    made.lines[len(self._text)] = node
        self._text.append("    return fixed, body")
        made.text = "\n".join(self._text) + "\n"
        return made

    def _kept(self, fixed: list[Line], moving: list[Line]) -> list[Value]:
        """What the fixed part makes for the rest."""
        made = {v for line in fixed for v in line.node.outputs}
        read = [v for line in moving for v in line.operands if isinstance(v, Value)]
        return list(dict.fromkeys(v for v in (*read, *self._region.outputs) if v in made))

    def _unpacked(self, name: str, count: int) -> list[str]:
        if not count:
            return []
        return [f"    {', '.join(f'{name}{i}' for i in range(count))}, = {name}"]

    def _function(
        self,
        name: str,
        arguments: str,
        lines: list[Line],
        inputs: Sequence[Value],
        kept: Sequence[Value],
        result: str,
    ) -> list[tuple[str, Node | None]]:
        text: list[tuple[str, Node | None]] = [(f"def {name}({arguments}):", None)]
        for source, values in (("i", inputs), ("f", kept)):
            if values:
                names = ", ".join(self._name(v) for v in values)
                text.append((f"    {names}, = {source}", None))
        alive = set(self._region.outputs) | set(kept)
        last = {v: line for line in lines for v in line.operands if isinstance(v, Value)}
        for line in lines:
            text.append((f"    {self._call(line)}", line.node))
            read = [v for v in line.operands if isinstance(v, Value)]
            dead = [v for v in dict.fromkeys((*read, *line.node.outputs)) if v not in alive]
            dead = [v for v in dead if last.get(v, line) is line]
            if name == "body" and dead:
                text.append((f"    del {', '.join(map(self._name, dead))}", None))
        return [*text, (f"    return {result}", None)]

    def _call(self, line: Line) -> str:
        outputs = ", ".join(self._name(v) for v in line.node.outputs)
        target = outputs if line.returns_one else f"{outputs}, *_"
        words = ["d"] if line.takes_dims else []
        words += [self._operand(v) for v in line.operands]
        words += [f"{k}={self._thing(v)}" for k, v in line.keywords.items()]
        if line.shapes is not None:
            words.append(f"shapes=s[{len(self._made.shapes)}]")
            self._made.shapes.append(line.shapes)
        if line.shares:
            words.append(f"shares=h[{len(self._made.shared)}]")
            self._made.shared.append(line.shares)
        call = f"{self._thing(line.function)}({', '.join(words)})"
        return f"{target} = {call if line.returns_one else f'{self._thing(as_outputs)}({call})'}"

    def _operand(self, operand: Value | Arg | None) -> str:
        if operand is None:
            return "None"
        if isinstance(operand, Value):
            return self._name(operand)
        if operand.pack is not None:
            self._made.packs.append(operand.pack)
            return f"p{len(self._made.packs) - 1}"
        return self._thing(operand.thing) if operand.key is None else self._weight(operand.key)

    def _thing(self, thing: Any) -> str:
        if thing is None or isinstance(thing, bool):
            return str(thing)
        if isinstance(thing, int):
            return str(int(thing))
        number = self._numbers.setdefault(id(thing), len(self._made.things))
        if number == len(self._made.things):
            self._made.things.append(thing)
        return f"k{number}"

    def _weight(self, key: Key) -> str:
        number = self._weights.setdefault(key, len(self._weights))
        if number == len(self._made.weights):
            self._made.weights.append(key)
        return f"w{number}"

    def _name(self, value: Value) -> str:
        return self._names.setdefault(value, f"v{len(self._names)}")

    def _tuple(self, values: Iterable[Value]) -> str:
        return "(" + "".join(f"{self._name(v)}, " for v in values) + ")"
