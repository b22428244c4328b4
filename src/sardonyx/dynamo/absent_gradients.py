"""Gradients that are absent, as those of logits where a model returns them next to its loss.

AOTAutograd has tensors of zeros for them, as large as the results of the forward graph, which the
backward graph reads and adds. Eager torch does not, and neither does this backend: autograd passes
None, and the backward graph runs without what depends on absent gradients alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache, partial, wraps
from itertools import chain
from typing import Any, Final

import torch
from torch import fx
from torch._C._autograd import _get_sequence_nr
from torch.utils._pytree import tree_leaves

from sardonyx.base.locks import Lock
from sardonyx.base.records import replace
from sardonyx.dynamo.executor import Executor
from sardonyx.dynamo.lower import LoweredGraph, ModelOutput, is_tangent
from sardonyx.graph.copy import copy_nodes
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.passes.replace import prune

Function = Callable[..., Any]
Boxed = Callable[[list[Any]], Any]
_MARK: Final = "_sardonyx_absent_gradients"
# By op: the inputs of which one is enough to make all outputs zeros.
_ZERO_BY_ONE: Final = {
    **dict.fromkeys(
        ("Cast", "Div", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Neg",
         "ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Trilu",
         "Unsqueeze"),
        (0,),
    ),
    "MatMul": (0, 1),
    "Mul": (0, 1),
}  # fmt: skip
# The inputs that must all be zeros.
_ZERO_BY_ALL: Final = {
    "Add": (0, 1),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Sub": (0, 1),
    "Where": (1, 2),
}


def with_absent_gradients(compiled: Function, module: fx.GraphModule) -> Function:
    """Return a function that AOTAutograd compiled, whose backward graph gets None for zeros.

    All sizes must be known: a gradient that is absent does not have any. What else autograd or
    this torch do not allow leaves the zeros.
    """
    if not _accepts_none() or not _is_static(module):
        return compiled

    @wraps(compiled)
    def call(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return compiled(*args)
        first = _get_sequence_nr()
        results = compiled(*args)
        _pass_none(results, first)
        return results

    return call


@cache
def _accepts_none() -> bool:
    """Whether AOTAutograd passes None on to backward graphs."""
    try:
        # It cannot be imported before torch._dynamo.
        from torch._functorch._aot_autograd.runtime_wrappers import AOTDispatchAutograd

        process: Any = AOTDispatchAutograd.process_runtime_tangent
        return bool(process(None, None) == (None, [None]))
    except Exception:
        return False


def _is_static(module: fx.GraphModule) -> bool:
    """Whether all sizes and numbers of a graph of TorchDynamo are known."""
    values = tree_leaves([node.meta.get("example_value") for node in module.graph.nodes])
    sizes = (size for v in values if isinstance(v, torch.Tensor) for size in v.shape)
    return not any(isinstance(size, torch.SymInt) for size in chain(values, sizes))


def _pass_none(results: Any, first: int) -> None:
    """Make autograd pass None where one of these results of a call has no gradient.

    Nodes with sequence numbers from `first` on were made by the call.
    """
    for result in results if isinstance(results, (tuple, list)) else ():
        node: Any = result.grad_fn if isinstance(result, torch.Tensor) else None
        while node is not None and node._sequence_nr() >= first:
            function = getattr(node, "_forward_cls", None)
            if hasattr(function, "_aot_id"):
                if _leaves_none(function):
                    node.set_materialize_grads(False)
                return
            # A view of a result has nodes of its own before the call's.
            node = node.next_functions[0][0] if node.next_functions else None


def _leaves_none(function: Any) -> bool:
    """Whether the backward pass of an autograd function of AOTAutograd may get and return None.

    Compiled autograd traces calls of torch's backward graph instead, which do not take None. It
    asks each node for a key before it makes the gradients.
    """
    if getattr(function, "maybe_subclass_metadata", function) is not None:
        return False  # the parts of a gradient of a tensor subclass cannot be None
    if not hasattr(function, _MARK):
        key = getattr(function, "_compiled_autograd_key", None)
        if key is None:
            return False

        def key_with_zeros(ctx: Any) -> Any:
            ctx.set_materialize_grads(True)
            return key(ctx)

        function._compiled_autograd_key = staticmethod(key_with_zeros)
        setattr(function, _MARK, True)
    return True


def with_zeros(run: Boxed, module: fx.GraphModule) -> Boxed:
    """Return the function of a backward graph with zeros for absent gradients."""
    inputs = (n for n in module.graph.nodes if n.op == "placeholder")
    fakes = [(i, n.meta.get("val")) for i, n in enumerate(inputs) if is_tangent(n.name)]
    makers = [
        (i, partial(torch.empty_strided, f.shape, f.stride(), dtype=f.dtype, device=f.device))
        for i, f in fakes
        if isinstance(f, torch.Tensor) and all(isinstance(d, int) for d in f.shape)
    ]

    def run_with_zeros(args: list[Any]) -> Any:
        for index, make in makers:
            if args[index] is None:
                args[index] = make().zero_()
        return run(args)

    run_with_zeros._boxed_call = True  # type: ignore[attr-defined]
    return run_with_zeros


class BackwardExecutor:
    """A backward graph, with a session for each set of absent gradients. Thread-safe."""

    def __init__(self, lowered: LoweredGraph, threads: int) -> None:
        self.lowered = lowered
        self._threads = threads
        self._tangents = [index for index, name in lowered.tensors if is_tangent(name)]
        self._executors: dict[tuple[int, ...], Executor] = {}  # by indices of absent gradients
        self._lock = Lock()

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run with the torch graph's arguments, in a list that is emptied (boxed)."""
        absent = tuple(index for index in self._tangents if args[index] is None)
        executor = self._executors.get(absent)
        if executor is None:
            with self._lock:
                executor = self._executors.get(absent)
                if executor is None:
                    executor = self._executors[absent] = self._made(absent)
        return executor(args)

    @property
    def latest(self) -> Executor | None:
        """The executor that ran last."""
        return max(self._executors.values(), key=lambda e: e.runs[1], default=None)

    def _made(self, absent: tuple[int, ...]) -> Executor:
        lowered = without_gradients(self.lowered, absent) if absent else self.lowered
        return Executor(lowered, self._threads, is_backward=True)


def without_gradients(lowered: LoweredGraph, absent: Collection[int]) -> LoweredGraph:
    """Return a backward graph without the gradients in these arguments.

    What it returns for a tensor on which only they depend is None, as in eager torch.
    """
    model = lowered.model
    names = {name for index, name in lowered.tensors if index in absent}
    reduced = _Reduction(model.graph, names)
    kept = [i for i, value in enumerate(model.graph.outputs) if value not in reduced.zeros]
    reduced.finish(kept)
    new_index = {old: new for new, old in enumerate(kept)}
    outputs = [
        result
        if not isinstance(result, ModelOutput)
        else replace(result, index=new_index[result.index])
        if result.index in new_index
        else None
        for result in lowered.outputs
    ]
    return replace(
        lowered,
        model=replace(
            model,
            graph=reduced.graph,
            inputs=[d for d in model.inputs if d.name not in names],
            outputs=[model.outputs[i] for i in kept],
        ),
        tensors=tuple(pair for pair in lowered.tensors if pair[1] not in names),
        outputs=tuple(outputs),
    )


class _Reduction:
    """A copy of a graph in which some inputs are zeros, and so is what depends on them alone."""

    def __init__(self, source: Graph, names: Collection[str]) -> None:
        self.graph = Graph(source.name)
        self.zeros = {v for v in source.inputs if v.name in names}
        self._source = source
        self._copies: dict[Value, Value] = {}
        for value in source.inputs:
            if value not in self.zeros:
                self._copies[value] = Value(value.name, value.fact)
                self.graph.add_input(self._copies[value])
        for node in source.sorted_nodes():
            self._add(node)

    def finish(self, kept: Sequence[int]) -> None:
        """Set the outputs: some of those of the source, which are values of their own."""
        b = Builder(self.graph)
        made: dict[Value, None] = {}
        for index in kept:
            source = self._source.outputs[index]
            value = self._copies[source]
            if value.node is None or value in made:
                value = b.Identity(value)
            value.name = source.name
            made[value] = None
        self.graph.set_outputs(made)
        prune(self.graph)

    def _add(self, node: Node) -> None:
        zeros = {slot for slot, value in enumerate(node.inputs) if value in self.zeros}
        if _is_zero(node.op.name, zeros):
            self.zeros.update(node.outputs)
        elif zeros and (other := _other_addend(node, zeros)) in self._copies:
            self._copies[node.outputs[0]] = self._copies[other]
        else:
            for slot in zeros:
                self._make_zeros(node, slot)
            copy_nodes([node], self.graph, self._copies)

    def _make_zeros(self, node: Node, slot: int) -> None:
        value = node.inputs[slot]
        assert value is not None
        if value in self._copies:
            return
        b, fact = Builder(self.graph), value.tensor
        zero = b.const(0, fact.dtype)
        self._copies[value] = b.Expand(zero, b.ints(*fact.dims))  # type: ignore[arg-type]
        for made in b.new_nodes:
            made.name, made.annotations = node.name, node.annotations


def _is_zero(op: str, zeros: Collection[int]) -> bool:
    """Whether all outputs of a node are zeros if these inputs are."""
    if any(slot in zeros for slot in _ZERO_BY_ONE.get(op, ())):
        return True
    needed = _ZERO_BY_ALL.get(op)
    return needed is not None and all(slot in zeros for slot in needed)


def _other_addend(node: Node, zeros: Collection[int]) -> Value | None:
    """Return the input that a node returns because it adds or subtracts zeros; None if none."""
    if node.op.name not in ("Add", "Sub") or (zeros == {0} and node.op.name == "Sub"):
        return None
    other = node.inputs[1 if 0 in zeros else 0]
    assert other is not None
    is_whole = other.tensor.shape == node.outputs[0].tensor.shape
    return other if is_whole else None
