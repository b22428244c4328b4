"""Lower a torch.fx graph of ATen calls to a Sardonyx model.

Every node is lowered by the function that `dynamo.table` has for its overload. A node without one
is recorded with the reason, and `dynamo.split` then leaves it to torch.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import numpy as np
import sympy
import torch
from torch import fx

from sardonyx.autodiff.recompute import RECOMPUTED
from sardonyx.base.records import frozen
from sardonyx.dynamo.aten_builder import (
    AtenBuilder,
    Draw,
    Unsupported,
    dtype_of,
    expression_of,
)
from sardonyx.dynamo.numbers import Symbols, formula_of, symbols_of
from sardonyx.dynamo.table import lowering_of
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.load.model import Declared, Model
from sardonyx.passes.replace import prune

OPSET: Final = 23
_ROOT: Final = re.compile(r"^L\['\w+'\](\.__self__)?\.?")  # the wrapped module, in paths of torch
# Ops whose result depends on the strides of their operand.
_READ_STRIDES: Final = (
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
)
IR_VERSION: Final = 11


@frozen
class Fallback:
    """A torch node that is not lowered."""

    op: str
    reason: str
    source: str  # the user's line that made it, if torch knows it


@frozen
class DrawnInput:
    """An input that torch's generator fills at the start of each run, in graph order."""

    name: str
    draw: Draw
    sizes: tuple[Any, ...]  # numbers and `Formula`s


@frozen
class FrozenParameters:
    """Placeholders of an inference graph that are parameters of the user's module."""

    names: frozenset[str] = frozenset()
    relies_on_versions: bool = False  # detect writes by `Tensor._version` alone, not by bytes


NO_PARAMETERS: Final = FrozenParameters()


@frozen
class LoweredGraph:
    """A model, and how the arguments and results of the torch graph map to it.

    Plain data: neither fake tensors nor symbolic numbers of torch, which belong to one compilation.
    """

    model: Model
    tensors: tuple[tuple[int, str], ...]  # (index of the torch argument, name of the input)
    numbers: tuple[tuple[int, str], ...]  # likewise, of arguments that are numbers
    outputs: tuple[Any, ...]  # `ModelOutput`, `Argument`, `Drawn`, a formula, or the result itself
    draws: tuple[DrawnInput, ...]
    symbols: Symbols
    device: torch.device  # of the tensors
    modules: dict[str, str]  # input -> the module whose call returned it, if torch knows it
    parameters: tuple[int, ...] = ()  # indices of `tensors` that are `FrozenParameters`
    relies_on_versions: bool = False  # as `FrozenParameters` has it


@frozen
class Argument:
    """A result that is an argument, passed through."""

    index: int


@frozen
class Drawn:
    """A result that torch's generator draws, as a dropout mask that the backward graph reads."""

    index: int  # of `LoweredGraph.draws`


@frozen
class ModelOutput:
    """A result that is an output of the model, its axes permuted back if it has an order."""

    index: int
    order: tuple[int, ...] | None = None  # the result's axes in the order of the output's


def device_of(module: fx.GraphModule) -> torch.device:
    """Return the device of a graph's tensors; next to a GPU, scalars may be on the CPU."""
    fakes = (node.meta.get("val") for node in module.graph.nodes)
    devices = {fake.device for fake in fakes if isinstance(fake, torch.Tensor)}
    others = devices - {torch.device("cpu")}
    return next(iter(others)) if len(others) == 1 else torch.device("cpu")


def is_tensor(value: Any) -> bool:
    """Whether a fake value is a tensor."""
    return isinstance(value, torch.Tensor)


def is_primal(name: str) -> bool:
    """Whether an input is an argument of the forward graph, by AOTAutograd's `primals_` prefix."""
    return name.startswith("primals_")


def is_tangent(name: str) -> bool:
    """Whether an input is a forward result's gradient, by AOTAutograd's `tangents_` prefix."""
    return name.startswith("tangents_")


def gradient_names(graph: fx.Graph) -> frozenset[str]:
    """Return the names of a backward graph's values that depend on a tangent."""
    names: set[str] = set()
    for node in graph.nodes:
        is_first = node.op == "placeholder" and is_tangent(node.name)
        if is_first or any(source.name in names for source in node.all_input_nodes):
            names.add(node.name)
    return frozenset(names)


class GraphLowering:
    """The lowering of one fx graph; `fallbacks` is complete after `run`."""

    def __init__(
        self,
        module: fx.GraphModule,
        gradients: Collection[str] | None = None,
        parameters: FrozenParameters = NO_PARAMETERS,
        n_visible: int = 0,
    ) -> None:
        """`gradients` are the `gradient_names` of a backward graph, None for other graphs.

        `n_visible` results, the first ones, are the user's, and have torch's memory layout.
        """
        self._module = module
        self._n_visible = n_visible
        self._parameters = parameters
        self._gradients = gradients
        self._graph = Graph("torch")
        self._b = AtenBuilder(self._graph)
        self._b.device = device_of(module)
        self._values: dict[fx.Node, Any] = {}
        self._arguments: list[fx.Node] = []
        self._inputs: list[tuple[int, str]] = []
        self.fallbacks: dict[fx.Node, Fallback] = {}

    def run(self) -> LoweredGraph | None:
        """Lower all nodes; None if some must stay with torch."""
        result: LoweredGraph | None = None
        for node in self._module.graph.nodes:
            match node.op:
                case "placeholder":
                    self._placeholder(node)
                case "get_attr":
                    self._attribute(node)
                case "call_function":
                    self._call(node)
                case "output":
                    self._keep_strides()
                    result = None if self.fallbacks else self._finish(node)
                case _:
                    self._refuse(node, f"{node.op} nodes have no lowering")
        return result

    def _keep_strides(self) -> None:
        """Leave the whole graph to torch if a call there depends on strides of a session's result.

        Results of sessions are contiguous, whatever torch's would be.
        """
        readers = (n for n in self.fallbacks if n.target in _READ_STRIDES)
        if any(n.args[0] not in self._arguments for n in readers):
            for node in self._module.graph.nodes:
                if node.op == "call_function" and node not in self.fallbacks:
                    self._refuse(node, "a call in the same graph reads the strides of its operand")

    def _placeholder(self, node: fx.Node) -> None:
        index = len(self._arguments)
        self._arguments.append(node)
        fake: Any = node.meta.get("val")  # absent for Python values, which tracing specialized
        if not is_tensor(fake):
            self._values[node] = fake
            self._name_number(node, fake)
            return
        try:
            self._values[node] = self._b.input(node.name, fake)
            self._inputs.append((index, node.name))
        except Unsupported as error:
            self._refuse(node, str(error))

    def _name_number(self, node: fx.Node, fake: Any) -> None:
        """Make a number that is a symbol available to symbolic size expressions."""
        if isinstance(fake, torch.SymInt) and isinstance(expression_of(fake), sympy.Symbol):
            self._b.number_names.setdefault(expression_of(fake), node.name)

    def _attribute(self, node: fx.Node) -> None:
        tensor = operator.attrgetter(str(node.target))(self._module)
        if isinstance(tensor, torch.nn.Module):  # a graph that a higher-order op calls
            self._values[node] = tensor
            return
        try:
            self._values[node] = constant(ArrayConst(_as_array(tensor)))
        except Unsupported as error:
            self._refuse(node, str(error))

    def _call(self, node: fx.Node) -> None:
        fake = node.meta.get("val")
        if node.target is operator.getitem:
            whole, index = node.args
            results = self._values.get(whole)  # type: ignore[arg-type]
            if results is None:
                self._placeholder_for(node, fake)
            else:
                self._values[node] = results[index]
            return
        if node.target is torch.ops.aten._local_scalar_dense.default:
            self._refuse(node, "data-dependent scalar (.item())")
            return
        if isinstance(fake, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._values[node] = fake  # symbolic; the lowerings of its users compute it
            return
        lowering = lowering_of(node.target)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._refuse(node, "higher-order op: torch runs it, its subgraphs are compiled")
            return
        if lowering is None:
            self._refuse(node, "it has no lowering")
            return
        try:
            args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self._argument)
            self._b.call_node, self._b.out = node, fake
            first = len(self._b.new_nodes)
            self._values[node] = lowering(self._b, *args, **kwargs)
            self._annotate(node, self._b.new_nodes[first:])
            self._check(node, fake)
        except Unsupported as error:
            self._refuse(node, str(error))
        except Exception as error:
            self._refuse(node, f"its lowering failed: {type(error).__name__}: {error}")

    def _annotate(self, node: fx.Node, made: Iterable[Node]) -> None:
        """Name the nodes of a call, and mark recomputation for the schedule.

        The execution order recomputes activations right before the gradient that reads them.
        """
        for one in made:
            one.name = node.name
            if self._gradients is not None:
                one.annotations = (0 if node.name in self._gradients else RECOMPUTED, True)

    def _argument(self, node: fx.Node) -> Any:
        value = self._values[node]
        if value is None and is_tensor(node.meta.get("val")):
            raise Unsupported(f"its input {node.name} has an unsupported dtype")
        return value

    def _check(self, node: fx.Node, fake: Any) -> None:
        """Check types and ranks against torch's fake results: a wrong lowering must not run."""
        values = self._values[node]
        pairs = (
            zip(values, fake, strict=False)
            if isinstance(values, (tuple, list))
            else [(values, fake)]
        )
        for value, expected in pairs:
            if value is None or not is_tensor(expected):
                continue
            fact = value.tensor
            if fact.shape is None:
                raise Unsupported("the rank of its lowering's result is unknown")
            if fact.dtype is not dtype_of(expected.dtype):
                raise Unsupported(f"its lowering returns {fact.dtype}, torch {expected.dtype}")
            if len(fact.shape) != expected.dim():
                raise Unsupported(f"its lowering returns {fact}, torch {tuple(expected.shape)}")

    def _refuse(self, node: fx.Node, reason: str) -> None:
        trace = (node.meta.get("stack_trace") or "").strip().splitlines()
        source = trace[-2].strip() if len(trace) >= 2 else ""
        self.fallbacks[node] = Fallback(str(node.target), reason, source)
        self._placeholder_for(node, node.meta.get("val"))

    def _placeholder_for(self, node: fx.Node, fake: Any) -> None:
        """Give later nodes inputs to read, so that one pass finds all nodes without a lowering."""
        if is_tensor(fake):
            try:
                self._values[node] = self._b.input(node.name, fake)
            except Unsupported:
                self._values[node] = None
        else:
            self._name_number(node, fake)
            self._values[node] = None if isinstance(fake, (tuple, list)) else fake

    def _map_results(self, results: Any) -> tuple[list[Value], list[Any]]:
        """Return the outputs of the model, and for each result where it is found after a run."""
        outputs: list[Value] = []
        indices: dict[fx.Node, int] = {}
        orders = self._orders(results)
        owners: dict[Value, fx.Node] = {}  # the first result that is this value
        mapped: list[Any] = []
        drawn = {value: index for index, (value, *_) in enumerate(self._b.draws)}
        for result in results:
            value = self._values[result] if isinstance(result, fx.Node) else result
            if not isinstance(value, Value):
                mapped.append(formula_of(value))
            elif isinstance(result, fx.Node) and result in self._arguments:
                mapped.append(Argument(self._arguments.index(result)))
            elif value in drawn and owners.setdefault(value, result) is result:
                mapped.append(Drawn(drawn[value]))
            else:
                if result not in indices:
                    # A lowering may return its operand (`clone`), but results of different nodes
                    # are tensors of their own: one may require a gradient, or be written to.
                    if value.node is None or owners.setdefault(value, result) is not result:
                        value = self._b.Identity(value)
                    if result in orders:
                        value = self._b.Transpose(value, perm=orders[result])
                    indices[result] = len(outputs)
                    outputs.append(value)
                mapped.append(ModelOutput(indices[result], orders.get(result)))
        return outputs, mapped

    def _finish(self, node: fx.Node) -> LoweredGraph:
        outputs, mapped = self._map_results(node.args[0])
        self._graph.set_outputs(outputs)
        self._drop_unread_inputs()
        numbers = self._b.number_values
        sizes = [(i, a.name) for i, a in enumerate(self._arguments) if a.name in numbers]
        draws = (DrawnInput(v.name, d, tuple(map(formula_of, s))) for v, d, s in self._b.draws)
        return LoweredGraph(
            self._model(outputs),
            tuple(self._inputs),
            tuple(sizes),
            tuple(mapped),
            tuple(draws),
            symbols_of([a.meta.get("val") for a in self._arguments]),
            self._b.device,
            {a.name: _module_of(a) for a in self._arguments},
            self._parameter_indices(),
            self._parameters.relies_on_versions,
        )

    def _orders(self, results: Any) -> dict[fx.Node, tuple[int, ...]]:
        """Return the axes in memory order of the user's results that are not contiguous.

        What the backward graph reads as well stays contiguous, as sessions read it.
        """
        saved = set(results[self._n_visible :])
        visible = {r for r in results[: self._n_visible] if isinstance(r, fx.Node)} - saved
        orders = {r: _memory_order(r.meta.get("val")) for r in visible}
        return {r: order for r, order in orders.items() if order is not None}

    def _parameter_indices(self) -> tuple[int, ...]:
        """Return the indices of parameters that may be constants: on the CPU, of known sizes."""
        if self._b.device.type != "cpu":
            return ()
        named = (pair for pair in self._inputs if pair[1] in self._parameters.names)
        sizes = {v.name: v.tensor.dims for v in self._graph.inputs}
        return tuple(i for i, name in named if all(isinstance(d, int) for d in sizes[name]))

    def _drop_unread_inputs(self) -> None:
        """Remove the tensors that no output depends on, so that a run is a single native call.

        One with symbolic sizes stays: the run may know a size from it alone.
        """
        prune(self._graph)
        tensors = {name for _, name in self._inputs}  # the other inputs are numbers and draws
        dropped = {
            v
            for v in self._graph.inputs
            if v.name in tensors and not v.is_used
            if all(isinstance(d, int) for d in v.tensor.dims)
        }
        self._graph.set_inputs([v for v in self._graph.inputs if v not in dropped])
        names = {v.name for v in dropped}
        self._inputs = [pair for pair in self._inputs if pair[1] not in names]

    def _model(self, outputs: list[Value]) -> Model:
        for index, value in enumerate(outputs):
            value.name = f"result.{index}"
        return Model(
            graph=self._graph,
            ir_version=IR_VERSION,
            opsets={"": OPSET},
            inputs=[_declared(v) for v in self._graph.inputs],
            outputs=[_declared(v) for v in outputs],
            overridable=[],
            producer_name="sardonyx.dynamo",
        )


def _module_of(node: fx.Node) -> str:
    """Return the path of the module whose call made a node, as in `named_modules`."""
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    return _ROOT.sub("", str(list(stack.values())[-1][0]))


def _declared(value: Value) -> Declared:
    fact = value.tensor
    dims = (
        None if fact.shape is None else tuple(d if isinstance(d, int) else None for d in fact.dims)
    )
    return Declared(value.name, fact.without_contents(), dims)


def _as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a constant tensor as an array."""
    dtype = dtype_of(tensor.dtype)
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtype.np)
    return tensor.numpy().copy()


def _memory_order(fake: Any) -> tuple[int, ...] | None:
    """Return the axes of a dense tensor from the largest stride to 1; None if it is contiguous."""
    if not is_tensor(fake) or not all(isinstance(stride, int) for stride in fake.stride()):
        return None
    order = sorted(range(fake.dim()), key=lambda axis: -fake.stride(axis))
    expected: Any = 1
    for axis in reversed(order):
        if fake.stride(axis) != expected or not isinstance(expected, int):
            return None
        expected = expected * fake.shape[axis]
    return None if order == list(range(fake.dim())) else tuple(order)
