"""Gradients that are absent, as those of logits where a model returns them next to its loss.

AOTAutograd has tensors of zeros for them, as large as the results of the forward graph, which the
backward graph reads and adds. Eager torch does not, and neither does this backend: autograd passes
None, and the backward graph runs without what depends on absent gradients alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache, cached_property, partial, wraps
from itertools import chain
from typing import Any, Final

import torch
from torch import fx
from torch._C._autograd import _get_sequence_nr
from torch.utils._pytree import tree_leaves

from sardonyx.base.locks import Lock
from sardonyx.base.records import replace
from sardonyx.dynamo.aten_builder import TORCH_DTYPES
from sardonyx.dynamo.executor import Executor
from sardonyx.dynamo.lower import Argument, LoweredGraph, ModelOutput, is_tangent
from sardonyx.graph.copy import copy_nodes
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.passes.replace import prune

Function = Callable[..., Any]
Boxed = Callable[[list[Any]], Any]
_MARK: Final = "_sardonyx_absent_gradients"
# Of one backward graph. A loss of other results in each step would compile in each step, which
# takes longer than to compute with zeros.
_MAX_SESSIONS: Final = 8
# By op: the inputs of which one is enough to make all outputs zeros.
_ZERO_BY_ONE: Final = {
    **dict.fromkeys(
        ("Cast", "CumSum", "Div", "Expand", "Flatten", "Gather", "GatherElements", "Identity",
         "Neg", "ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
         "Trilu", "Unsqueeze"),
        (0,),
    ),
    "ConvWeightGradient": (0, 1),
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
    this torch do not allow leaves the zeros, and so do hooks of arguments.
    """
    if not _accepts_none() or not _is_static(module):
        return compiled

    @wraps(compiled)
    def call(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return compiled(*args)
        tensors = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        # Autograd calls these with None, and they expect a tensor.
        have_hooks = any(tensor._backward_hooks for tensor in tensors)
        before = [tensor.grad_fn for tensor in tensors if not tensor.is_leaf]
        first = _get_sequence_nr()
        results = compiled(*args)
        node = None if have_hooks else _node_of(results, first, before)
        if node is not None and _leaves_none(node._forward_cls):
            node.set_materialize_grads(False)
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


def _node_of(results: Any, first: int, before: Sequence[Any]) -> Any:
    """Return the node of AOTAutograd that computes gradients of a call's results; None if none.

    Nodes with sequence numbers from `first` on were made by the call, or by another thread. The
    latter are nodes of arguments, `before`, and what these were computed from.
    """
    for result in results if isinstance(results, (tuple, list)) else ():
        node: Any = result.grad_fn if isinstance(result, torch.Tensor) else None
        while node is not None and node._sequence_nr() >= first and node not in before:
            if hasattr(getattr(node, "_forward_cls", None), "_aot_id"):
                return node
            # A view of a result has nodes of its own before the call's.
            node = node.next_functions[0][0] if node.next_functions else None
    return None


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
    """A backward graph, with a session for each set of absent gradients. Thread-safe.

    After `_MAX_SESSIONS` sets, others run the whole graph with zeros, for the same results.
    """

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
        if executor is not None or (executor := self._added(absent)) is not None:
            return executor(args)
        for index in absent:
            args[index] = self._zeros[index]()
        results = self._executors[()](args)
        for position, read in enumerate(self._read):
            if _is_absent(read, absent):
                results[position] = None
        return results

    @property
    def latest(self) -> Executor | None:
        """The executor that ran last."""
        return max(list(self._executors.values()), key=lambda e: e.runs[1], default=None)

    def _added(self, absent: tuple[int, ...]) -> Executor | None:
        """Return a new executor, or make that without absent gradients if there are too many."""
        with self._lock:
            has_room = len(self._executors) < _MAX_SESSIONS
            key = absent if has_room or absent in self._executors else ()
            if key not in self._executors:
                lowered = without_gradients(self.lowered, key) if key else self.lowered
                self._executors[key] = Executor(lowered, self._threads, is_backward=True)
            return self._executors[key] if key == absent else None

    @cached_property
    def _read(self) -> list[frozenset[int]]:
        return gradients_read(self.lowered)

    @cached_property
    def _zeros(self) -> dict[int, Callable[[], torch.Tensor]]:
        """A function for the zeros of each gradient."""
        facts = {value.name: value.tensor for value in self.lowered.model.graph.inputs}
        device = self.lowered.device
        return {
            i: partial(torch.zeros, fact.static, dtype=TORCH_DTYPES[fact.dtype], device=device)
            for i, fact in ((i, facts[n]) for i, n in self.lowered.tensors if is_tangent(n))
            if fact.static is not None
        }


def gradients_read(lowered: LoweredGraph) -> list[frozenset[int]]:
    """Return for each result of a backward graph the gradients on whose elements it depends.

    They are indices of arguments.
    """
    graph, none = lowered.model.graph, frozenset[int]()
    tangents = {name: frozenset((i,)) for i, name in lowered.tensors if is_tangent(name)}
    read = {value: tangents.get(value.name, none) for value in graph.inputs}
    for node in graph.sorted_nodes():
        inputs = () if node.op.name == "Shape" else node.inputs
        of_node = none.union(*(read.get(value, none) for value in inputs if value is not None))
        read.update(dict.fromkeys(node.outputs, of_node))
    found = []
    for result in lowered.outputs:
        match result:
            case ModelOutput(index=index):
                found.append(read.get(graph.outputs[index], none))
            case Argument(index=index):
                found.append(frozenset((index,)) & none.union(*tangents.values()))
            case _:
                found.append(none)
    return found


def _is_absent(read: frozenset[int], absent: Collection[int]) -> bool:
    """Whether a result that depends on these gradients is None.

    Eager torch does not run the functions that only absent gradients reach.
    """
    return bool(read) and read.issubset(absent)


def without_gradients(lowered: LoweredGraph, absent: Collection[int]) -> LoweredGraph:
    """Return a backward graph without the gradients in these arguments.

    What it returns for a tensor on which only they depend is None, as in eager torch.
    """
    model = lowered.model
    names = {name for index, name in lowered.tensors if index in absent}
    present = [
        None if _is_absent(read, absent) else result
        for result, read in zip(lowered.outputs, gradients_read(lowered), strict=True)
    ]
    kept = sorted({result.index for result in present if isinstance(result, ModelOutput)})
    reduced = _Reduction(model.graph, names)
    reduced.finish(kept)
    new_index = {old: new for new, old in enumerate(kept)}
    outputs = [
        replace(r, index=new_index[r.index]) if isinstance(r, ModelOutput) else r for r in present
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
            if source in self.zeros:
                value = self._zeros_of(source)
            else:
                value = self._copies.get(source) or Value(source.name, source.fact)  # a constant
            if value.node is None or value in made:
                value = b.Identity(value)
            value.name = source.name
            made[value] = None
        self.graph.set_outputs(made)
        prune(self.graph)

    def _add(self, node: Node) -> None:
        absent = {slot for slot, value in enumerate(node.inputs) if value in self.zeros}
        zeros = absent | {slot for slot, value in enumerate(node.inputs) if self._is_zero(value)}
        if absent and _is_zero(node, zeros):
            self.zeros.update(node.outputs)
        elif absent and (other := _other_addend(node, absent)) in self._copies:
            self._copies[node.outputs[0]] = self._copies[other]
        else:
            for slot in absent:
                self._zeros_of(node.inputs[slot], node)  # type: ignore[arg-type]
            copy_nodes([node], self.graph, self._copies)

    def _is_zero(self, value: Value | None) -> bool:
        """Whether a value is the constant 0, or its expansion."""
        if value is not None and value.op == "Expand":
            value = value.node.inputs[0]  # type: ignore[union-attr]
        const = None if value is None else value.const
        return const is not None and const.count == 1 and not const.view().any()

    def _zeros_of(self, value: Value, reader: Node | None = None) -> Value:
        """Return zeros that replace a value."""
        if value not in self._copies:
            b, fact = Builder(self.graph), value.tensor
            zero = b.const(0, fact.dtype)
            self._copies[value] = b.Expand(zero, b.ints(*fact.dims))  # type: ignore[arg-type]
            if reader is not None:
                for made in b.new_nodes:
                    made.name, made.annotations = reader.name, reader.annotations
        return self._copies[value]


def _is_zero(node: Node, zeros: Collection[int]) -> bool:
    """Whether all outputs of a node are zeros if these inputs are."""
    op, n_inputs = node.op.name, len(node.inputs)
    if any(slot in zeros for slot in _ZERO_BY_ONE.get(op, ())):
        return True
    if op in ("Conv", "ConvTranspose"):
        return n_inputs == 2 and (0 in zeros or 1 in zeros)
    needed = range(n_inputs) if op == "Concat" else _ZERO_BY_ALL.get(op)
    return needed is not None and all(slot in zeros for slot in needed)


def _other_addend(node: Node, zeros: Collection[int]) -> Value | None:
    """Return the input that a node returns because it adds or subtracts zeros; None if none."""
    if node.op.name not in ("Add", "Sub") or (zeros == {0} and node.op.name == "Sub"):
        return None
    other = node.inputs[1 if 0 in zeros else 0]
    assert other is not None
    is_whole = other.tensor.shape == node.outputs[0].tensor.shape
    return other if is_whole else None
