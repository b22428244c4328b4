"""What kernels and epilogues rely on and inference leaves to the passes that made a graph."""

from __future__ import annotations

import re
from typing import Any, Final

from sardonyx.errors import FAULTS, SardonyxError
from sardonyx.graph.dim import Shape, symbols
from sardonyx.graph.dtype import BOOL, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, as_facts
from sardonyx.load.attributes import fits
from sardonyx.ops import lookup
from sardonyx.ops.elementwise.chain import ABSENT, Code, Instruction
from sardonyx.pack.codec import need
from sardonyx.pack.contracts import check_node

_FRESH: Final = re.compile(r"in#\d+")  # dims that the model gives no name


def check_name(name: str) -> bool:
    """Whether a size of an input may be called so: never as inference calls sizes of its own."""
    return name.isidentifier() or name[:1] in ("'", '"') or _FRESH.fullmatch(name) is not None


def check_graph(graph: Graph) -> None:
    """Checks every node with a code or sizes; its facts are inferred."""
    entry = graph.scope.entry
    known: set[Any] = set()
    for node in graph.all_nodes():
        if node.op.domain != INTERNAL:
            continue
        check_node(node)
        if "code" in node.attrs:
            _check_code(node, known)
        elif node.op.name == "Sizes":
            _check_sizes(node, entry)


def _check_sizes(node: Node, entry: set[str]) -> None:
    fact = node.attrs["fact"]
    need(isinstance(fact, Fact) and fact.sym is not None, "Sizes has no elements")
    static = fact.static
    truths = fact.dtype is BOOL and set(fact.sym) <= {0, 1}
    need(static is not None and (fact.dtype.is_integer or truths), f"Sizes gives {fact}")
    count = 1
    for d in static:
        count *= d
    need(count == len(fact.sym), f"Sizes gives {len(fact.sym)} elements as {fact}")
    need(all(symbols(s) <= entry for s in fact.sym), "Sizes has sizes that no input gives")


def _check_code(node: Node, known: set[Any]) -> None:
    code = node.attrs["code"]
    if code is None:
        return
    is_code = isinstance(code, tuple) and code and all(isinstance(i, Instruction) for i in code)
    need(is_code, f"{node.op} has no code")
    slots = node.op.inputs
    n_fixed = len(slots) - 1 if slots[-1].variadic else len(slots)
    operands = [v.tensor for v in node.inputs[n_fixed:] if v is not None]
    need(len(operands) == len(node.inputs[n_fixed:]), f"{node.op} lacks an operand")
    types = [f.dtype for f in operands]
    if n_fixed:  # what the product is made of has its type
        first = node.inputs[0]
        assert first is not None
        types.insert(0, first.tensor.dtype)
        shape = node.outputs[0].tensor.dims
        for fact in operands:
            _check_broadcasts(node.graph.scope, fact.dims, shape)
    _check_instructions(code, types, known)


def _check_broadcasts(scope: Scope, dims: Shape, into: Shape) -> None:
    """An operand of an epilogue has the product's shape, or 1 where it is repeated."""
    need(len(dims) <= len(into), f"an operand of rank {len(dims)}")
    for d, whole in zip(reversed(dims), reversed(into), strict=False):
        scope.equal_or_one(d, whole, "an operand does not broadcast")


def _check_instructions(code: Code, operands: list[DType], known: set[Any]) -> None:
    """Each argument is there, and each result of the type that its op makes."""
    types = list(operands)
    for it in code:
        need(all(ABSENT <= a < len(types) for a in it.args), f"{it} reads what is not there")
        given = tuple(None if a == ABSENT else types[a] for a in it.args)
        key = (it.op, it.dtype, it.attrs, given)
        if key not in known:
            _check_instruction(it, given)
            known.add(key)
        types.append(it.dtype)


def _check_instruction(it: Instruction, given: tuple[DType | None, ...]) -> None:
    op = lookup(*it.op)
    assert op is not None
    attrs = dict(it.attrs)
    right = attrs.keys() == op.attrs.keys() and all(fits(op.attrs[k], v) for k, v in it.attrs)
    need(right, f"the attributes of {it}")
    enough = op.min_inputs <= len(given) and len(given) <= (op.max_inputs or len(given))
    need(enough, f"{it} has {len(given)} arguments")
    # Vectors: a bias is one, and all else that a code has is elementwise.
    facts: list[Fact | None] = [None if t is None else Fact(t, (1,)) for t in given]
    facts += [None] * op.n_absent(len(facts))
    assert op.infer_rule is not None
    try:
        (made,) = as_facts(op.infer_rule(Scope(), *facts, **attrs))
    except (SardonyxError, AttributeError, *FAULTS) as error:
        need(False, f"{it}: {error}")
    need(isinstance(made, Fact) and made.dtype is it.dtype, f"{it} gives another type")
