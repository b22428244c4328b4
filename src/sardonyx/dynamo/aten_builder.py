"""Builds the nodes of an ATen graph: type promotion, symbolic sizes, draws of torch's generators.

A lowering gets an `AtenBuilder` and the arguments of the ATen call: tensors as values of the graph,
sizes as ints or `torch.SymInt`, everything else as torch passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import sympy
import torch

from sardonyx.autodiff.backward import Backward
from sardonyx.graph import dtype as types
from sardonyx.graph.dim import Size, symbol
from sardonyx.graph.dtype import DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import Decomposition
from sardonyx.ops.builder import Builder
from sardonyx.ops.gradient_rules import rule_of

Dimension = int | torch.SymInt
Draw = Callable[[Sequence[int]], torch.Tensor]  # concrete sizes -> the drawn tensor

_EXACT_IN_F32: Final = (
    types.F32, types.F16, types.BF16, types.I8, types.U8, types.I16, types.U16, types.BOOL,
)  # fmt: skip
DTYPES: Final[dict[torch.dtype, DType]] = {
    torch.float32: types.F32,
    torch.float64: types.F64,
    torch.float16: types.F16,
    torch.bfloat16: types.BF16,
    torch.int64: types.I64,
    torch.int32: types.I32,
    torch.int16: types.I16,
    torch.int8: types.I8,
    torch.uint8: types.U8,
    torch.bool: types.BOOL,
}
TORCH_DTYPES: Final = {dtype: torch_dtype for torch_dtype, dtype in DTYPES.items()}


class Unsupported(Exception):
    """An ATen call that cannot be lowered; the message is the reason that reports show."""


def dtype_of(dtype: torch.dtype) -> DType:
    """Return the element type for a torch dtype."""
    try:
        return DTYPES[dtype]
    except KeyError:
        raise Unsupported(f"unsupported dtype {dtype}") from None


class AtenBuilder(Builder):
    """A builder that knows the torch node that it lowers."""

    __slots__ = (
        "_formula_names",
        "_sizes",
        "call_node",
        "device",
        "draws",
        "number_names",
        "number_values",
        "out",
        "symbols",
    )

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, graph.scope)
        self.device = torch.device("cpu")
        self.call_node: Any = None  # the torch.fx node being lowered
        self.out: Any = None  # the fake result of the node being lowered: a tensor or a tuple
        self.symbols: dict[sympy.Symbol, tuple[Value, int]] = {}  # -> input, axis that has the size
        self.number_names: dict[sympy.Symbol, str] = {}  # sizes that are arguments of their own
        self.number_values: dict[str, Value] = {}  # the inputs for those that lowerings read
        self.draws: list[tuple[Value, Draw, tuple[Dimension, ...]]] = []
        self._sizes: dict[sympy.Expr, Value] = {}
        self._formula_names: dict[sympy.Expr, str] = {}  # for input sizes that are expressions

    # Inputs and types

    def input(self, name: str, fake: torch.Tensor) -> Value:
        """Add a graph input with the type and shape of a fake tensor."""
        if fake.is_neg():
            raise Unsupported("its negative bit is set: the memory has the opposite signs")
        shape = tuple(self._declared(d) for d in fake.shape)
        value = Value(name, Fact(dtype_of(fake.dtype), shape))
        self.graph.add_input(value)
        for axis, d in enumerate(fake.shape):
            expression = expression_of(d)
            if isinstance(expression, sympy.Symbol):
                self.symbols.setdefault(expression, (value, axis))
                self.graph.scope.entry.add(str(expression))
        return value

    def _declared(self, d: Dimension) -> Size:
        expression = expression_of(d)
        if isinstance(expression, int):
            return expression
        if isinstance(expression, sympy.Symbol):
            return symbol(str(expression))
        # Any unused name works; the size is bound from the input's shape.
        name = self._formula_names.setdefault(expression, f"formula_{len(self._formula_names)}")
        self.graph.scope.entry.add(name)
        return symbol(name)

    def as_f32(self, x: Value) -> Value:
        """Cast to float32, for ops whose kernels have no other type."""
        if x.tensor.dtype not in _EXACT_IN_F32:
            raise Unsupported(f"{x.tensor.dtype} has no kernel, and float32 is less precise")
        return self.cast(x, types.F32)

    def to(self, x: Value, dtype: torch.dtype) -> Value:
        """Return a value in another torch type."""
        return self.cast(x, dtype_of(dtype))

    def wide(self, x: Value) -> Value:
        """Return a 16-bit float as float32, in which torch computes; other types unchanged."""
        return self.cast(x, types.F32) if x.tensor.dtype in (types.F16, types.BF16) else x

    def typed_as_out(self, *results: Value | None) -> tuple[Value | None, ...]:
        """Return the results of an op in the types of torch's; None stays None."""
        pairs = zip(results, self.out, strict=False)
        return tuple(r if r is None or t is None else self.to(r, t.dtype) for r, t in pairs)

    @property
    def out_type(self) -> torch.dtype:
        """The torch type of the node's (first) result."""
        out = self.out[0] if isinstance(self.out, (tuple, list)) else self.out
        return out.dtype  # type: ignore[no-any-return]

    @property
    def compute_type(self) -> torch.dtype:
        """The torch type that torch computes the result in: float32 for 16-bit floats."""
        out = self.out_type
        return torch.float32 if out in (torch.float16, torch.bfloat16) else out

    def in_compute_type(self, *operands: Any) -> list[Value]:
        """Return operands in `compute_type`; `rounded` casts the result to its own type."""
        return [self.operand(x, self.compute_type) for x in operands]

    def rounded(self, x: Value) -> Value:
        """Return a value in the type of the result."""
        return self.to(x, self.out_type)

    def like_out(self, *operands: Any) -> list[Value]:
        """Return operands in the type of the result; numbers become constants."""
        return [self.operand(x, self.out_type) for x in operands]

    def promoted(self, *operands: Any) -> list[Value]:
        """Return operands in the type to which torch promotes them, for ops with bool results."""
        known: list[Any] = [
            torch.empty((1,) * min(x.tensor.rank, 1), dtype=TORCH_DTYPES[x.tensor.dtype])
            if isinstance(x, Value)
            else (1 if isinstance(x, torch.SymInt) else x)
            for x in operands
        ]
        dtype = known[0].dtype if len(known) == 1 else torch.result_type(*known)
        return [self.operand(x, dtype) for x in operands]

    def operand(self, x: Any, dtype: torch.dtype) -> Value:
        """Return a tensor, number or symbolic size as a value of a torch type."""
        if isinstance(x, Value):
            return self.to(x, dtype)
        if isinstance(x, torch.SymFloat):
            return self.to(self._float_expression(x.node.expr), dtype)
        if isinstance(x, (torch.SymInt, torch.SymBool)):
            return self.to(self.size(x), dtype)
        try:
            return self.const(x, dtype_of(dtype))
        except OverflowError:  # torch wraps or compares it unrounded, depending on the op
            raise Unsupported(f"the number {x} is outside the range of {dtype}") from None

    def fake(self, index: int) -> Any:
        """Return the fake tensor of an argument of the node being lowered."""
        return self.call_node.args[index].meta["val"]

    def memory_order(self, index: int) -> list[int]:
        """Return the axes of a tensor argument from the largest stride to the smallest."""
        fake = self.fake(index)
        strides = [int(s) if isinstance(s, int) else s for s in fake.stride()]
        return sorted(range(fake.dim()), key=lambda i: -strides[i])

    # Sizes

    def size(self, d: Any) -> Value:
        """Return a size as an int64 scalar."""
        expression = expression_of(d)
        if isinstance(expression, int):
            return self.const(expression, types.I64)
        return self._expression(expression)

    def sizes(self, dims: Sequence[Dimension]) -> Value:
        """Return sizes as an int64 vector; a constant where all are known."""
        known = [expression_of(d) for d in dims]
        if all(isinstance(d, int) for d in known):
            return self.ints(*known)
        vectors = [self.Reshape(self.size(d), self.ints(1)) for d in dims]
        return self.Concat(*vectors, axis=0)

    def shape_for_reshape(self, dims: Sequence[Dimension]) -> Value:
        """Return the shape operand of a Reshape: -1 for the size if only one is symbolic."""
        known = [expression_of(d) for d in dims]
        is_open = [not isinstance(d, int) for d in known]
        if sum(is_open) == 1 and 0 not in known:
            return self.ints(*(-1 if o else d for o, d in zip(is_open, known, strict=True)))
        return self.sizes(dims)

    def _expression(self, expression: sympy.Expr) -> Value:
        """Return the value of a symbolic expression over sizes, computed from input shapes."""
        value = self._sizes.get(expression)
        if value is None:
            value = self._sizes[expression] = self._computed(expression)
        return value

    def _computed(self, expression: sympy.Expr) -> Value:
        if expression.is_Integer:
            return self.const(int(expression), types.I64)
        if isinstance(expression, sympy.Symbol):
            return self._symbol(expression)
        name = type(expression).__name__
        op = _SIZE_OPS.get(name)
        if op is None:
            raise Unsupported(f"symbolic expression {name} has no lowering")
        if name == "Pow":
            base, power = expression.args
            if not (power.is_Integer and 0 < int(power) <= 8):
                raise Unsupported(f"symbolic expression {expression} has no lowering")
            args = [self._expression(base)] * int(power)
            op = "Mul"
        else:
            args = [self._expression(a) for a in expression.args]
        result = args[0]
        if op == "Div" and not expression.args[0].is_nonnegative:  # Div truncates; this floors
            result = self.Sub(result, self.Mod(result, args[1]))
        for other in args[1:]:
            result = self.node(op, result, other).outputs[0]
        return result

    def _symbol(self, symbol_: sympy.Symbol) -> Value:
        """Return the size that a symbol stands for: that of an axis, or an argument of its own."""
        if symbol_ not in self.symbols and symbol_ in self.number_names:
            name = self.number_names[symbol_]
            if not symbol_.is_nonnegative:
                value = self.number_values[name] = Value(name, Fact(types.I64, ()))
                self.graph.add_input(value)
                return value
            # An empty tensor [size, 0] passes the number as a symbolic dim, so that runs are
            # specialized for it.
            value = Value(name, Fact(types.U8, (symbol(str(symbol_)), 0)))
            self.graph.add_input(value)
            self.graph.scope.entry.add(str(symbol_))
            self.number_values[name] = value
            self.symbols[symbol_] = value, 0
        if symbol_ not in self.symbols:
            raise Unsupported(f"the symbolic size {symbol_} is not an input's size")
        value, axis = self.symbols[symbol_]
        return self.Gather(self.Shape(value), self.const(axis, types.I64), axis=0)

    def _float_expression(self, expression: sympy.Expr) -> Value:
        """Return the value of a SymFloat expression, such as 2 / (n - 1), in float64."""
        if expression.is_Number:
            return self.const(float(expression), types.F64)
        name = type(expression).__name__
        if name == "ToFloat" or expression.is_integer:
            size = expression.args[0] if name == "ToFloat" else expression
            return self.cast(self._expression(size), types.F64)
        op = _FLOAT_OPS.get(name)
        if op is None:
            raise Unsupported(f"SymFloat expression {name} has no lowering")
        result, *others = (self._float_expression(a) for a in expression.args)
        if not others:
            return self.node(op, result).outputs[0]
        for other in others:
            result = self.node(op, result, other).outputs[0]
        return result

    # Backward ops

    def gradients(self, forward: Node, dy: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Return the gradients of a forward node's inputs, by the op's own gradient rule.

        Only the rule reads the forward node; unless the rule uses its outputs, it is pruned.
        """
        rule = rule_of(forward.op)
        if rule is None or isinstance(rule, Decomposition):
            raise Unsupported(f"{forward.op.name} has no gradient rule")
        b = Backward(self.graph)
        b.active.update(v for v, w in zip(forward.inputs, wanted, strict=False) if w and v)
        found = rule(b, forward, dy)
        self.new_nodes.extend(b.new_nodes)
        grads = list(found) if isinstance(found, (list, tuple)) else [found]
        return [g if w else None for g, w in zip(grads, wanted, strict=False)]

    # Draws

    def drawn(self, draw: Draw, sizes: Sequence[Dimension], dtype: torch.dtype) -> Value:
        """Add an input that `draw` fills at the start of each run, before any kernel.

        Draws keep the order of the torch graph, so a run advances the RNG exactly as eager mode
        does.
        """
        shape = tuple(self._declared(d) for d in sizes)
        value = Value(f"draw.{len(self.draws)}", Fact(dtype_of(dtype), shape))
        self.graph.add_input(value)
        self.draws.append((value, draw, tuple(sizes)))
        return value


# Integer arithmetic of sympy's and torch's symbolic expressions.
_SIZE_OPS: Final = {
    "Add": "Add",
    "Mul": "Mul",
    "Pow": "Mul",
    "FloorDiv": "Div",
    "CleanDiv": "Div",
    "PythonMod": "Mod",
    "Mod": "Mod",
    "Max": "Max",
    "Min": "Min",
}


_FLOAT_OPS: Final = {
    "Add": "Add",
    "Mul": "Mul",
    "FloatTrueDiv": "Div",
    "IntTrueDiv": "Div",
    "Pow": "Pow",
    "FloatPow": "Pow",
    "Max": "Max",
    "Min": "Min",
    "OpaqueUnaryFn_sqrt": "Sqrt",
}


def expression_of(d: Any) -> int | sympy.Expr:
    """Return a size as an int where it is known, else as a sympy expression."""
    if isinstance(d, torch.SymInt):
        expression = d.node.expr
        return int(expression) if expression.is_Integer else expression
    if isinstance(d, (torch.SymFloat, torch.SymBool)):
        raise Unsupported(f"{type(d).__name__} has no lowering")
    return int(d)


def static(d: Any, what: str) -> int:
    """Return a size that must be known when the graph is compiled."""
    expression = expression_of(d)
    if not isinstance(expression, int):
        raise Unsupported(f"{what} is the open size {expression}")
    return expression
