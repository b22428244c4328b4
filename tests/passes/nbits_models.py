"""Models with n-bit weights, and how they are lowered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.graph.verify import verify
from sardonyx.load import load
from sardonyx.passes import PassOptions, lower, optimize

Array = np.ndarray[Any, np.dtype[Any]]
TYPES = {
    "u2": (ml_dtypes.uint2, 0, 4), "i2": (ml_dtypes.int2, -2, 2), "u4": (ml_dtypes.uint4, 0, 16),
    "i4": (ml_dtypes.int4, -8, 8), "u8": (np.uint8, 0, 256), "i8": (np.int8, -128, 128),
}  # fmt: skip
REAL = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
K, N = 64, 24


class Model:
    """Nodes and constants of a model under construction; names are numbered."""

    def __init__(self, real: str = "f32") -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.real = REAL[real]
        self._rng = np.random.default_rng(7)
        self._n = 0

    def _name(self) -> str:
        self._n += 1
        return f"v{self._n}"

    def const(self, array: Any) -> str:
        name = self._name()
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, *inputs: str, domain: str = "", **attrs: Any) -> str:
        name = self._name()
        self.nodes.append(helper.make_node(op, inputs, [name], name, domain=domain, **attrs))
        return name

    def steps(self, kind: str, shape: tuple[int, ...]) -> str:
        dtype, low, high = TYPES[kind]
        return self.const(self._rng.integers(low, high, shape).astype(dtype))

    def floats(self, *shape: int) -> str:
        return self.const(self._rng.uniform(0.01, 0.1, shape).astype(self.real))

    def weight(
        self,
        kind: str,
        shape: tuple[int, ...] = (K, N),
        *,
        axis: int = 1,
        block: int = 0,
        scales: tuple[int, ...] = (),
        zero: bool = False,
    ) -> str:
        """Dequantized weights; scales follow from the block where there is one."""
        if block:
            scales = tuple(-(-d // block) if i == axis else d for i, d in enumerate(shape))
        inputs = [self.steps(kind, shape), self.floats(*scales)]
        inputs += [self.steps(kind, scales)] if zero else []
        return self.node("DequantizeLinear", *inputs, axis=axis, block_size=block)

    def transposed(self, value: str, *perm: int) -> str:
        return self.node("Transpose", value, perm=perm or (1, 0))

    def reshaped(self, value: str, *shape: int) -> str:
        return self.node("Reshape", value, self.const(np.array(shape)))

    def cast(self, value: str, to: int = TensorProto.FLOAT) -> str:
        return self.node("Cast", value, to=to)

    def finished(self, y: str, shape: tuple[Any, ...] = ("B", K)) -> bytes:
        """The model: x is a matrix, i indices."""
        real = helper.np_dtype_to_tensor_dtype(np.dtype(self.real))
        inputs = [
            helper.make_tensor_value_info("x", real, shape),
            helper.make_tensor_value_info("i", TensorProto.INT64, ["I"]),
        ]
        self.nodes.append(helper.make_node("Identity", [y], ["y"]))
        graph = helper.make_graph(
            self.nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], self.initializers
        )
        opsets = [helper.make_opsetid("", 25), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=13)
        made: bytes = model.SerializeToString()
        return made


def lowered(model: bytes, options: PassOptions | None = None) -> Graph:
    graph = load(model).graph
    infer(graph)
    optimize(graph, options or PassOptions())
    lower(graph, options or PassOptions())
    verify(graph)
    return graph


def ops(graph: Graph) -> Counter[str]:
    views = ("Identity", "Transpose", "Reshape")
    return Counter(n.op.name for n in graph.all_nodes() if n.op.name not in views)


def run(model: bytes, feeds: dict[str, Any], is_plain: bool = False, **config: str) -> Array:
    options = sardonyx.SessionOptions()
    if is_plain:
        options.graph_optimization_level = sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in config.items():
        options.add_session_config_entry(f"session.qdq_matmulnbits_{key}", value)
    session = sardonyx.InferenceSession(model, options)
    assert is_plain or session._compiled.program.python_steps == 0
    made: Array = session.run(None, feeds)[0]
    return made


def by_onnxruntime(model: bytes, feeds: dict[str, Any]) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    made: Array = session.run(None, feeds)[0]
    return made


def feeds_of(shape: tuple[int, ...] = (3, K), real: str = "f32") -> dict[str, Any]:
    x = np.random.default_rng(1).standard_normal(shape).astype(REAL[real])
    return {"x": x, "i": np.array([0, 5, -1, 5])}


def near(found: Array, wanted: Array, tolerance: float = 2e-6) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    most = np.abs(wanted.astype(np.float64)).max()
    gap = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()
    assert gap <= tolerance * most, f"{gap / most:.1e}"
