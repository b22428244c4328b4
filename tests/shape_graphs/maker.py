"""A graph under construction, whose every value is known for each of its runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, helper, numpy_helper

from sardonyx.errors import UNEXPECTED_ERRORS, SardonyxError
from sardonyx.ops import lookup

Array = np.ndarray[Any, np.dtype[Any]]
OPSET = 18
DOMAIN = "spelled"
N_RUNS = 3
MAX_SIZE = 4096  # elements of a value
GROWING = ("ConstantOfShape", "Expand", "Tile", "Pad", "Range")  # may make much of little
MAX_NUMBER = 1 << 20  # among its elements; beyond, int32 and float32 detours would not agree


def functions() -> list[FunctionProto]:
    """Return the steps that exporters write as functions of the model."""
    opset = [helper.make_opsetid("", OPSET)]

    def make(name: str, *nodes: NodeProto) -> FunctionProto:
        return helper.make_function(DOMAIN, name, ["x"], ["y"], list(nodes), opset)

    two = helper.make_node("Constant", [], ["two"], value_int=2)
    return [
        make("Same", helper.make_node("Identity", ["x"], ["y"])),
        make("Twice", two, helper.make_node("Mul", ["x", "two"], ["y"])),
        make("Half", two, helper.make_node("Div", ["x", "two"], ["y"])),
    ]


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "Same": lambda x: np.array(x),
    "Twice": lambda x: x * 2,
    "Half": lambda x: np.trunc(x / 2).astype(x.dtype),
}


@dataclass
class ShapeGraph:
    """The graph of a seed: nodes, and every value for each run."""

    seed: int
    nodes: list[NodeProto]
    inputs: dict[str, list[Array]]  # by run; sizes may differ between runs
    constants: dict[str, Array]
    values: dict[str, list[Array]]  # of everything, by run
    outputs: list[str]
    declared: dict[str, list[str]] = field(default_factory=dict)  # names of an input's sizes

    def feeds(self, run: int) -> dict[str, Array]:
        return {name: arrays[run] for name, arrays in self.inputs.items()}

    def model(self, mode: str, run: int = 0) -> bytes:
        """The model with named sizes, or those of one run, or none; or its inputs as constants."""
        constants, inputs = dict(self.constants), []
        for name, arrays in self.inputs.items():
            if mode == "constant":
                constants[name] = arrays[run]
                continue
            dims: list[Any] | None = list(arrays[run].shape)
            if mode == "named":
                dims = list(self.declared[name])
            elif mode == "open":
                dims = [None] * arrays[run].ndim
            kind = helper.np_dtype_to_tensor_dtype(arrays[run].dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, dims))
        outputs = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(self.values[n][0].dtype), None
            )
            for n in self.outputs
        ]
        graph = helper.make_graph(
            self.nodes, f"seed_{self.seed}", inputs, outputs,
            [numpy_helper.from_array(a, n) for n, a in constants.items()],
        )  # fmt: skip
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)],
            functions=functions(),
            ir_version=9,
        )
        data: bytes = made.SerializeToString()
        return data


class Maker:
    """Adds nodes one by one; one that fails in any run, or makes too much, is not added."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.nodes: list[NodeProto] = []
        self.inputs: dict[str, list[Array]] = {}
        self.declared: dict[str, list[str]] = {}
        self.constants: dict[str, Array] = {}
        self.values: dict[str, list[Array]] = {}
        self.made: list[str] = []  # outputs of nodes, in their order

    def input(self, arrays: list[Array], names: list[str]) -> str:
        name = f"in{len(self.inputs)}"
        self.inputs[name], self.declared[name] = arrays, names
        self.values[name] = arrays
        return name

    def const(self, array: Any, dtype: Any = np.int64) -> str:
        """A constant: an initializer, or a Constant node."""
        held = np.array(array, dtype)
        name = f"c{len(self.values)}"
        self.values[name] = [held] * N_RUNS
        if self.random.random() < 0.5:
            self.constants[name] = held
        else:
            value = numpy_helper.from_array(held)
            self.nodes.append(helper.make_node("Constant", [], [name], value=value))
        return name

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str | None:
        """A node, and the name of what it makes; None if it does not make sense in every run."""
        if kind in FUNCTIONS:
            runs = [[FUNCTIONS[kind](self.values[inputs[0]][run])] for run in range(N_RUNS)]
        else:
            runs = self._by_reference(kind, inputs, attrs)
        results = [r[0] for r in runs]
        if len(results) != N_RUNS or not all(map(_is_fit, results)):
            return None
        if len({r.ndim for r in results}) > 1:
            return None
        name = f"v{len(self.values)}"
        domain = DOMAIN if kind in FUNCTIONS else ""
        self.nodes.append(helper.make_node(kind, list(inputs), [name], domain=domain, **attrs))
        self.values[name] = results
        self.made.append(name)
        return name

    def _by_reference(
        self, kind: str, inputs: tuple[str, ...], attrs: dict[str, Any]
    ) -> list[list[Array]]:
        op = lookup("", kind)
        assert op is not None
        given = {**op.defaults, **{k: _attribute(v) for k, v in attrs.items()}}
        found = []
        for run in range(N_RUNS):
            arrays = [self.values[n][run] if n else None for n in inputs]
            if kind in GROWING and not _stays_small(kind, arrays):
                return []
            try:
                found.append([np.asarray(a) for a in op.run(arrays, given)])
            except (SardonyxError, *UNEXPECTED_ERRORS):
                return []
        return found

    def choose(self, condition: str, then: str, other: str) -> str | None:
        """An If whose branches hand on, or negate, one of two values from outside."""
        branches, results = [], []
        for name, side in ((then, "t"), (other, "e")):
            out = f"{side}{len(self.values)}"
            kind = "Identity" if self.random.random() < 0.6 else "Neg"
            dtype = self.values[name][0].dtype
            if dtype.kind not in "if":
                kind = "Identity"
            node = helper.make_node(kind, [name], [out])
            tensor = helper.make_tensor_value_info(
                out, helper.np_dtype_to_tensor_dtype(dtype), None
            )
            branches.append(helper.make_graph([node], f"branch_{out}", [], [tensor]))
            sign = -1 if kind == "Neg" else 1
            results.append([np.asarray(a * sign if sign < 0 else a) for a in self.values[name]])
        chosen = [
            results[0 if bool(self.values[condition][run].reshape(-1)[0]) else 1][run]
            for run in range(N_RUNS)
        ]
        if len({r.ndim for r in chosen}) > 1:
            return None
        name = f"v{len(self.values)}"
        self.nodes.append(
            helper.make_node(
                "If", [condition], [name], then_branch=branches[0], else_branch=branches[1]
            )
        )
        self.values[name] = chosen
        self.made.append(name)
        return name

    def loop(self, trips: str, carried: str) -> str | None:
        """A Loop over a computed count: what it carries grows by one number in each pass."""
        counts = [int(a.reshape(-1)[0]) for a in self.values[trips]]
        if max(counts) > 16:
            return None
        at, go, x, out, kept = (f"{p}{len(self.values)}" for p in ("i", "g", "x", "o", "k"))
        wide = helper.make_tensor_value_info
        body = helper.make_graph(
            [
                helper.make_node("Identity", [go], [kept]),
                helper.make_node("Unsqueeze", [at, self.const([0])], [f"{at}_row"]),
                helper.make_node("Concat", [x, f"{at}_row"], [out], axis=0),
            ],
            f"loop_{out}",
            [
                wide(at, onnx.TensorProto.INT64, []), wide(go, onnx.TensorProto.BOOL, []),
                wide(x, onnx.TensorProto.INT64, None),
            ],
            [wide(kept, onnx.TensorProto.BOOL, []), wide(out, onnx.TensorProto.INT64, None)],
        )  # fmt: skip
        name = f"v{len(self.values)}"
        self.nodes.append(helper.make_node("Loop", [trips, "", carried], [name], body=body))
        self.values[name] = [
            np.concatenate([a, np.arange(max(n, 0))])
            for a, n in zip(self.values[carried], counts, strict=True)
        ]
        self.made.append(name)
        return name

    def pool(self, kinds: str, ranks: tuple[int, ...] = (0, 1, 2, 3, 4)) -> list[str]:
        """The values of some kinds of type and ranks; later ones come more often."""
        found = [
            n
            for n, (a, *_) in self.values.items()
            if a.dtype.kind in kinds and a.ndim in ranks and n not in self.constants
        ]
        return found + found[-8:] * 2


def _attribute(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, onnx.TensorProto):
        from sardonyx.graph.const import ArrayConst

        return ArrayConst(numpy_helper.to_array(value))
    return value


def _stays_small(kind: str, arrays: list[Any]) -> bool:
    """Whether what an op makes is not worth refusing, before it is made."""
    if kind == "Range":
        first, last, _ = (float(a.reshape(-1)[0]) for a in arrays)
        return abs(last - first) <= MAX_SIZE
    sizes = np.maximum(np.abs(arrays[-1].astype(np.float64)), 1)
    data = 1 if kind == "ConstantOfShape" else max(arrays[0].size, 1)
    return float(np.log2(sizes).sum()) + np.log2(data) <= np.log2(16 * MAX_SIZE)


def _is_fit(array: Array) -> bool:
    if array.size > MAX_SIZE or array.ndim > 5:
        return False
    if array.dtype.kind == "b" or array.size == 0:
        return True
    return bool(np.all(np.isfinite(array))) and float(np.abs(array).max()) <= MAX_NUMBER
