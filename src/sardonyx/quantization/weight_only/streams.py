"""Activations of samples inside a model, computed once each while the model is being changed.

A stream holds, for every sample, the values that the rest of the model still needs. `advance`
computes the nodes that one value depends on, and drops what no later node reads: as in a run,
memory holds one cut of the graph per sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.records import replace
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.copy import copy_nodes
from sardonyx.graph.dim import Size, symbol
from sardonyx.graph.dtype import by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.load.model import Declared, Model
from sardonyx.session import InferenceSession

Array = np.ndarray[Any, Any]
Sample = Mapping[str, Any]

_SHAPES: Final = 64  # elements of integer tensors that may be shapes


class ActivationStream:
    """The values of samples at a cut of a model's main graph."""

    def __init__(self, model: Model, samples: Iterable[Sample]) -> None:
        self._model: Final = model
        names = {value.name: value for value in model.graph.inputs}
        self._values: list[dict[Value, Array]] = [
            {names[n]: np.asarray(array) for n, array in sample.items() if n in names}
            for sample in samples
        ]
        self._done: set[Node] = set()
        self._check(names)

    def _check(self, names: Mapping[str, Value]) -> None:
        if not self._values:
            raise InvalidArgument(
                "there are no calibration samples",
                hint="give samples, each a dict from input names to arrays",
            )
        needed = {n for n, v in names.items() if v not in self._model.graph.defaults}
        for index, values in enumerate(self._values):
            missing = needed - {v.name for v in values}
            if missing:
                raise InvalidArgument(
                    f"calibration sample {index} has no array for the input {min(missing)}",
                    hint="every sample is a dict with all inputs of the model",
                )
            for value, array in values.items():
                _check_shape(value, array, index)

    def __len__(self) -> int:
        return len(self._values)

    def advance(self, target: Value) -> list[Array]:
        """Return the arrays of a value, one per sample; compute it if that is still to be done."""
        nodes = self._needed(target)
        if nodes:
            self._run(nodes, target)
            self._done.update(nodes)
            self._drop(target)
        return [values[target] for values in self._values]

    def scale(self, value: Value, factors: Array) -> None:
        """Multiply the arrays of a value, for nodes that are changed after they were computed."""
        for values in self._values:
            values[value] = (values[value] * factors).astype(values[value].dtype)

    def _needed(self, target: Value) -> list[Node]:
        """Return the nodes that are not computed yet and that a value depends on, in order."""
        graph, needed, stack = self._model.graph, set[Node](), [target]
        while stack:
            node = stack.pop().node
            if node is None or node in needed or node in self._done or node.graph is not graph:
                continue
            needed.add(node)
            stack.extend(node.reads())
        return [node for node in graph.sorted_nodes() if node in needed]

    def _run(self, nodes: Sequence[Node], target: Value) -> None:
        """Compute nodes for every sample, with one session."""
        inside = set(nodes)
        results = [
            v for node in nodes for v in node.outputs if v is target or self._reads(v, inside)
        ]
        model, feeds = self._part(nodes, results)
        session = InferenceSession(model)
        for values in self._values:
            feed = {name: values[value] for name, value in feeds.items()}
            arrays = session.run(None, feed)
            values.update(zip(results, arrays, strict=True))

    def _reads(self, value: Value, inside: set[Node]) -> bool:
        """Return whether a node that is not computed yet reads a value."""
        return any(
            owner not in inside and owner not in self._done
            for owner in (self._owner(node) for node, _ in value.uses)
        )

    def _owner(self, node: Node) -> Node:
        """Return the node of the main graph that a node is, or whose body it is in."""
        while node.graph is not self._model.graph and node.graph.owner is not None:
            node = node.graph.owner
        return node

    def _drop(self, target: Value) -> None:
        first = self._values[0]
        dead = [v for v in first if v is not target and not self._reads(v, set())]
        for values in self._values:
            for value in dead:
                del values[value]

    def _part(
        self, nodes: Sequence[Node], results: Sequence[Value]
    ) -> tuple[Model, dict[str, Value]]:
        """Return a model of some nodes, and the values that it is fed, by name of its inputs."""
        made = {value for node in nodes for value in node.outputs}
        outside = dict.fromkeys(
            v for node in nodes for v in node.reads() if v not in made and v.const is None
        )
        graph, copies, feeds = Graph(), dict[Value, Value](), dict[str, Value]()
        for value in outside:
            if value not in self._values[0]:  # an input that samples leave to its default
                copies[value] = constant(self._model.graph.defaults[value], value.name)
                continue
            arrays = [values[value] for values in self._values]
            if _is_fixed(arrays):
                copies[value] = constant(ArrayConst(arrays[0]), value.name)
                continue
            name = f"in{len(feeds)}"
            feeds[name] = value
            copies[value] = Value(name, _fact(arrays))
            graph.add_input(copies[value])
        copy_nodes(nodes, graph, copies)
        graph.set_outputs([copies[value] for value in results])
        inputs = [Declared(v.name, v.fact, None) for v in graph.inputs]
        outputs = [Declared(f"out{i}", None, None) for i in range(len(results))]
        model = replace(self._model, graph=graph, inputs=inputs, outputs=outputs, overridable=[])
        return model, feeds


def _check_shape(value: Value, array: Array, index: int) -> None:
    """Raise for a sample whose array the model's input does not take."""
    shape = value.tensor.shape
    if shape is None:
        return
    sizes = zip(shape, array.shape, strict=False)
    if len(shape) != array.ndim or any(isinstance(d, int) and d != n for d, n in sizes):
        raise InvalidArgument(
            f"calibration sample {index} has {list(array.shape)} for the input {value.name}, which "
            f"is {value.fact}",
            hint="give arrays of the shapes that the model takes",
        )


def _is_fixed(arrays: Sequence[Array]) -> bool:
    """Return whether arrays may be shapes and are equal, so that sizes are known when compiling."""
    first = arrays[0]
    if first.dtype.kind not in "iub" or first.size > _SHAPES:
        return False
    return all(np.array_equal(first, other) for other in arrays[1:])


def _fact(arrays: Sequence[Array]) -> Fact:
    """Return what arrays have in common: sizes that vary are symbols, equal ones the same."""
    first = arrays[0]
    if any(a.ndim != first.ndim for a in arrays):
        return Fact(_dtype(first), None)
    shape: list[Size] = []
    for sizes in zip(*(a.shape for a in arrays), strict=True):
        is_open = len(set(sizes)) > 1
        shape.append(symbol(f"d{'_'.join(map(str, sizes))}") if is_open else sizes[0])
    return Fact(_dtype(first), tuple(shape))


def _dtype(array: Array) -> Any:
    return by_numpy(array.dtype)
