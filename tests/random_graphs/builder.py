"""Builds a random graph node by node: every value is computed as soon as its node is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from sardonyx.errors import SardonyxError
from sardonyx.ops import lookup
from tests.random_graphs import schema
from tests.random_graphs.eager import Eager
from tests.random_graphs.value import FOREIGN, Array, Recipe, Value, is_float, name_of, type_of

MAX_RANK = 6
TAME = 1e4  # results beyond this are left out of graphs that are meant to stay finite


class Unfit(Exception):
    """A node that the graph does better without: another is drawn instead."""


class Refused(Exception):
    """Our reference refuses a node; the graph ends with it, and onnxruntime is asked."""


@dataclass
class Traits:
    """Decisions that are made once per graph."""

    opset: int = 21
    ml: int = 3
    by_onnxruntime: bool = True  # only ops and types that onnxruntime has kernels for
    is_wild: bool = False  # NaN, infinities, denormals
    dtypes: tuple[str, ...] = ("float",)  # preferred for new values
    sizes: tuple[int, ...] = (1, 2, 3, 5)
    is_large: bool = False
    is_typed: bool = False  # most nodes work on the one preferred type

    @property
    def most(self) -> int:
        """The most elements that a value may have."""
        return 400_000 if self.is_large else 20_000


@dataclass
class Builder:
    """A graph under construction; a body has its parent's values at hand."""

    rng: Random
    traits: Traits
    parent: Builder | None = None
    values: dict[str, Value] = field(default_factory=dict)
    pool: list[Value] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    eager: list[Eager] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    refusal: str = ""
    is_alone: bool = False  # onnxruntime is not to be asked
    loose: dict[str, float] = field(default_factory=dict)  # tolerances that cases declare
    counter: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.getrandbits(64))

    @property
    def opsets(self) -> dict[str, int]:
        found = {"": self.traits.opset, schema.ML: self.traits.ml, schema.MICROSOFT: 1}
        # onnxruntime has none of their ops.
        return (
            found if self.traits.by_onnxruntime else {**found, **dict.fromkeys(schema.PREVIEWS, 1)}
        )

    def name(self, stem: str = "v") -> str:
        self.counter[0] += 1
        return f"{stem}{self.counter[0]}"

    # ------------------------------------------------------------------------- values from nothing

    def size(self) -> int:
        return self.rng.choice(self.traits.sizes)

    def new_shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5)) if rank is None else rank
        shape = [self.size() for _ in range(rank)]
        while math.prod(shape) > self.traits.most // 4:
            shape[shape.index(max(shape))] = self.rng.choice((1, 2, 3))
        return tuple(shape)

    def new(
        self,
        dtype: str,
        shape: Sequence[int] | None = None,
        low: float | None = None,
        high: float | None = None,
        style: str = "",
    ) -> Value:
        """A new input or constant; `style` says which: input, initializer or node."""
        drawn = self._drawn(dtype, shape, low, high)
        return self._drawn_given(drawn, style)

    def _drawn_given(self, drawn: Value, style: str = "") -> Value:
        """Folding constants assumes that they are finite, so others are inputs."""
        is_special = drawn.recipe is not None and drawn.recipe.specials
        return self.given(drawn.data, "input" if is_special else style, drawn.recipe)

    def _drawn(
        self,
        dtype: str,
        shape: Sequence[int] | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> Value:
        """A value that is not part of the graph yet."""
        shape = self.new_shape() if shape is None else tuple(int(d) for d in shape)
        specials = self.traits.is_wild and self.rng.random() < 0.3 and low is None
        recipe = Recipe(dtype, low, high, specials)
        data = recipe.draw(self.numbers, shape)
        return Value("", data, type_of(data), recipe=recipe)

    def given(self, data: Any, style: str = "", recipe: Recipe | None = None) -> Value:
        """A new input or constant that holds this."""
        style = style or self.rng.choice(("input", "input", "input", "initializer", "node"))
        data = np.asarray(data) if isinstance(data, np.generic) else data
        recipe = recipe or Recipe("", fixed=data)
        if not isinstance(data, np.ndarray):
            style = "input"
        elif name_of(data) in FOREIGN and style != "node":
            style = "initializer"
        root = self if self.parent is None else self.root
        if style == "node":
            tensor = numpy_helper.from_array(data, "")
            return self._add(helper.make_node("Constant", [], [self.name("c")], value=tensor))[0]
        value = Value(self.name("x"), data, type_of(data), style != "input", recipe=recipe)
        if style == "input":
            root.inputs.append(value)
        else:
            root.constants[value.name] = data
        root.values[value.name] = value
        root.pool.append(value)
        return value

    @property
    def root(self) -> Builder:
        return self if self.parent is None else self.parent.root

    # ------------------------------------------------------------------------------ values in hand

    def visible(self) -> list[Value]:
        """Every value that a node here may read."""
        return [*(self.parent.visible() if self.parent else ()), *self.pool]

    def find(self, name: str) -> Value:
        found = self.values.get(name)
        if found is None:
            assert self.parent is not None, name
            return self.parent.find(name)
        return found

    def among(
        self, types: Sequence[str], where: Callable[[Value], bool] | None = None
    ) -> Value | None:
        """A value of one of the types, rather a late one; or None."""
        fits = [v for v in self.visible() if v.is_tensor and v.dtype in types and not v.is_random]
        fits = [v for v in fits if where is None or where(v)]
        if self.traits.is_typed and self.rng.random() < 0.8:
            fits = [v for v in fits if v.dtype in self.traits.dtypes] or fits
        if not fits:
            return None
        weights = [(3 + v.depth) / (1 + 2 * v.uses) for v in fits]
        return self.rng.choices(fits, weights)[0]

    def pick(
        self,
        types: Sequence[str],
        where: Callable[[Value], bool] | None = None,
        shape: Sequence[int] | Callable[[], Sequence[int]] | None = None,
        p_new: float = 0.2,
        **limits: Any,
    ) -> Value:
        """A value at hand that fits, or a new one."""
        if not types:
            raise Unfit("no type fits")
        found = None if self.rng.random() < p_new else self.among(types, where)
        if found is not None:
            return found
        preferred = [t for t in self.traits.dtypes if t in types]
        dtype = self.rng.choice(preferred or list(types))
        for _ in range(8):
            wanted = shape() if callable(shape) else shape
            drawn = self._drawn(dtype, wanted, **limits)
            if where is None or where(drawn):
                return self._drawn_given(drawn)
        raise Unfit("no fitting shape found")

    def like(self, x: Value, shape: Sequence[int], p_new: float = 0.5, **limits: Any) -> Value:
        """A value of the same type as another, with a given shape."""
        wanted = tuple(shape)
        if not limits and self.rng.random() > p_new:
            found = self.among([x.dtype], lambda v: v.shape == wanted)
            if found is not None:
                return found
        return self.new(x.dtype, wanted, **limits)

    # --------------------------------------------------------------------------------------- nodes

    def emit(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int = 1,
        domain: str = "",
        params: dict[str, Any] | None = None,
        **attrs: Any,
    ) -> list[Value]:
        """Adds a node. A param is an attribute in some versions of the op, an input in others."""
        known = schema.schema(domain, op, self.opsets[domain])
        if known is None:
            raise Unfit(f"no {op} in opset {self.opsets[domain]}")
        names = [i.name for i in known.inputs]
        given: list[Value | None] = list(inputs)
        for key, data in (params or {}).items():
            if data is None:
                continue
            if key in names:
                given += [None] * (names.index(key) + 1 - len(given))
                given[names.index(key)] = self.param(data)
            elif key in known.attributes:
                attrs[key] = data.tolist() if isinstance(data, np.ndarray) else data
        node = NodeProto(op_type=op, domain=domain)
        node.input.extend(v.name if v is not None else "" for v in given)
        while node.input and not node.input[-1]:
            del node.input[-1]
        node.output.extend(self.name() for _ in range(outputs))
        for key, data in attrs.items():
            if data is not None and key in known.attributes:
                node.attribute.append(attribute(key, data, known))
        return self._add(node)

    def param(self, data: Any) -> Value:
        """An axis, a shape or a size: a constant mostly."""
        if isinstance(data, Value):
            return data
        style = self.rng.choice(("initializer", "initializer", "node", "node", "input"))
        return self.given(np.asarray(data), style)

    def add(self, node: NodeProto) -> list[Value]:
        return self._add(node)

    def _add(self, node: NodeProto) -> list[Value]:
        read: dict[str, Value] = {}
        try:
            eager = Eager(node, _Lookup(self), self.opsets)
            read = {n: self.find(n) for n in eager.reads}
            results = eager({n: v.data for n, v in read.items()})
        except (SardonyxError, ArithmeticError, MemoryError) as error:
            if self.parent is not None:  # the same node comes outside of bodies too
                raise Unfit(str(error)) from error
            self.nodes.append(node)
            self.root.refusal = f"{node.op_type}: {type(error).__name__}: {error}"
            raise Refused(self.root.refusal) from error
        if node.op_type != "Constant":
            for result in results:
                self._check(result, [v.data for v in read.values()])
        self.nodes.append(node)
        self.eager.append(eager)
        for v in read.values():
            v.uses += 1
        depth = 1 + max((v.depth for v in read.values()), default=-1)
        names = [n for n in node.output if n]
        made = []
        for name, data, type_ in zip(names, results, eager.types, strict=False):
            is_tensor = isinstance(data, np.ndarray) and type_.HasField("tensor_type")
            proto = type_of(data) if is_tensor else type_
            value = Value(name, data, proto, node.op_type == "Constant", depth)
            value.is_random = is_random(node) or any(v.is_random for v in read.values())
            self.values[name] = value
            self.pool.append(value)
            made.append(value)
        return made

    def _check(self, result: Any, read: Sequence[Any]) -> None:
        """Keeps results small, and finite where the graph is not a wild one."""
        if not isinstance(result, np.ndarray):
            return
        if result.size > self.traits.most or result.ndim > MAX_RANK:
            raise Unfit("too large")
        if not result.size or not is_float(name_of(result)):
            return
        numbers = np.abs(result.astype(np.float64))
        is_half = result.dtype.itemsize < 4
        is_new = bool(np.any(np.isinf(numbers))) and not any(_has_inf(x) for x in read)
        if self.traits.is_wild:
            # Half types that overflow on the way do so or not, depending on what is one step.
            if is_half and (np.any((numbers > 2000.0) & np.isfinite(numbers)) or is_new):
                raise Unfit("too large")
            return
        if not np.all(numbers < (2000.0 if is_half else TAME)):  # NaN as well
            raise Unfit("too large")
        if numbers.size > 3 and numbers.max() < 1e-4:
            raise Unfit("too small")

    def body(self, inputs: Sequence[Value] = ()) -> Builder:
        """A builder for a body that reads these and, from outside, everything visible here."""
        inner = Builder(self.rng, self.traits, self, counter=self.counter)
        for value in inputs:
            inner.values[value.name] = value
            inner.pool.append(value)
        return inner

    def graph(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> GraphProto:
        """The nodes of a body as a graph."""
        return helper.make_graph(
            self.nodes, self.name("body"),
            [helper.make_value_info(v.name, v.type) for v in inputs],
            [helper.make_value_info(v.name, v.type) for v in outputs],
        )  # fmt: skip


def _has_inf(x: Any) -> bool:
    if not isinstance(x, np.ndarray) or not is_float(name_of(x)):
        return False
    return bool(np.any(np.isinf(x.astype(np.float64))))


def is_random(node: NodeProto) -> bool:
    """Whether a node draws numbers itself."""
    op = lookup(node.domain, node.op_type)
    return op is not None and not op.is_pure


class _Lookup(dict[str, Value]):
    """The values of a builder and of those around it, by name."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self._builder = builder

    def __missing__(self, name: str) -> Value:
        return self._builder.find(name)


def attribute(name: str, data: Any, known: Any) -> AttributeProto:
    """An attribute of the type that the schema says."""
    if isinstance(data, (AttributeProto, TensorProto, GraphProto)):
        return helper.make_attribute(name, data)
    kind = str(known.attributes[name].type).rpartition(".")[2]
    if isinstance(data, np.ndarray):
        data = numpy_helper.from_array(data) if kind == "TENSOR" else data.tolist()
    if isinstance(data, np.generic):
        data = data.item()
    if kind == "FLOAT":
        data = float(data)
    elif kind == "FLOATS":
        data = [float(d) for d in data]
    elif kind == "INTS" and isinstance(data, int):
        data = [data]
    elif kind == "INT" and isinstance(data, (list, tuple)):
        data = data[0]
    found = AttributeProto(name=name)
    if isinstance(data, (list, tuple)) and not data:
        found.type = getattr(AttributeProto, kind)
        return found
    return helper.make_attribute(name, int(data) if isinstance(data, bool) else data)
