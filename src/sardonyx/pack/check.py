"""Validates the graph of a pack: preconditions of kernels that inference does not check.

In a compiled model the passes guarantee them; a hostile pack may violate any. `contracts` has the
preconditions of single ops, this file those of fused elementwise code and of computed sizes.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sardonyx.errors import UNEXPECTED_ERRORS, SardonyxError
from sardonyx.graph.dim import Shape, symbols
from sardonyx.graph.dtype import BOOL, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, as_facts
from sardonyx.load.attributes import fits
from sardonyx.ops import lookup
from sardonyx.ops.elementwise.chain import ABSENT, Code, Instruction
from sardonyx.pack.codec import require
from sardonyx.pack.contracts import check_node

_UNNAMED: Final = re.compile(r"in#\d+")  # dims to which the model gives no name


def check_name(name: str) -> bool:
    """Whether a dim of an input may have a name: not one of those that inference generates."""
    return name.isidentifier() or name[:1] in ("'", '"') or _UNNAMED.fullmatch(name) is not None


def check_graph(graph: Graph) -> None:
    """Raise InvalidPack if an internal node violates a precondition; facts are inferred."""
    entry = graph.scope.entry
    checked: set[Any] = set()  # instructions, most of which occur many times
    for node in graph.all_nodes():
        if node.op.domain != INTERNAL:
            continue
        check_node(node)
        if "code" in node.attrs:
            _check_code(node, checked)
        elif node.op.name == "Sizes":
            _check_sizes(node, entry)


def _check_sizes(node: Node, entry: set[str]) -> None:
    fact = node.attrs["fact"]
    require(isinstance(fact, Fact) and fact.sym is not None, "Sizes has no elements")
    static = fact.static
    is_bool = fact.dtype is BOOL and set(fact.sym) <= {0, 1}
    require(static is not None and (fact.dtype.is_integer or is_bool), f"Sizes gives {fact}")
    count = 1
    for d in static:
        count *= d
    # Native code writes an element per entry into a tensor of this shape.
    require(count == len(fact.sym), f"Sizes gives {len(fact.sym)} elements as {fact}")
    # Other dims may not be bound when the node runs.
    require(all(symbols(s) <= entry for s in fact.sym), "Sizes has sizes that no input gives")


def _check_code(node: Node, checked: set[Any]) -> None:
    code = node.attrs["code"]
    if code is None:
        return
    is_code = isinstance(code, tuple) and code and all(isinstance(i, Instruction) for i in code)
    require(is_code, f"{node.op} has no code")
    slots = node.op.inputs
    n_fixed = len(slots) - 1 if slots[-1].variadic else len(slots)
    operands = [v.tensor for v in node.inputs[n_fixed:] if v is not None]
    require(len(operands) == len(node.inputs[n_fixed:]), f"{node.op} lacks an operand")
    types = [f.dtype for f in operands]
    if n_fixed:  # an epilogue: its first operand is the result, of the type of the op's inputs
        first = node.inputs[0]
        assert first is not None
        types.insert(0, first.tensor.dtype)
        shape = node.outputs[0].tensor.dims
        for fact in operands:
            _check_broadcasts(node.graph.scope, fact.dims, shape)
    _check_instructions(code, types, checked)


def _check_broadcasts(scope: Scope, dims: Shape, into: Shape) -> None:
    """An operand of an epilogue has the shape of the result, or 1 along broadcast axes."""
    require(len(dims) <= len(into), f"an operand of rank {len(dims)}")
    for d, whole in zip(reversed(dims), reversed(into), strict=False):
        scope.equal_or_one(d, whole, "an operand does not broadcast")


def _check_instructions(code: Code, operands: list[DType], checked: set[Any]) -> None:
    """Raise if an instruction reads an undefined register or has another type than its op."""
    types = list(operands)
    for it in code:
        require(all(ABSENT <= a < len(types) for a in it.args), f"{it} reads what is not there")
        arguments = tuple(None if a == ABSENT else types[a] for a in it.args)
        key = (it.op, it.dtype, it.attrs, arguments)
        if key not in checked:
            _check_instruction(it, arguments)
            checked.add(key)
        types.append(it.dtype)


def _check_instruction(it: Instruction, arguments: tuple[DType | None, ...]) -> None:
    op = lookup(*it.op)
    assert op is not None
    attrs = dict(it.attrs)
    has_attrs = attrs.keys() == op.attrs.keys() and all(fits(op.attrs[k], v) for k, v in it.attrs)
    require(has_attrs, f"the attributes of {it}")
    n = len(arguments)
    require(op.min_inputs <= n <= (op.max_inputs or n), f"{it} has {n} arguments")
    # Shapes do not matter for elementwise ops, except that a bias must be a vector.
    facts: list[Fact | None] = [None if t is None else Fact(t, (1,)) for t in arguments]
    facts += [None] * op.n_absent(len(facts))
    assert op.infer_rule is not None
    try:
        (result,) = as_facts(op.infer_rule(Scope(), *facts, **attrs))
    except (SardonyxError, AttributeError, *UNEXPECTED_ERRORS) as error:
        require(False, f"{it}: {error}")
    require(isinstance(result, Fact) and result.dtype is it.dtype, f"{it} gives another type")
