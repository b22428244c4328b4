"""A small language model with random weights, in each of the forms that exporters write."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper

MICROSOFT: Final = "com.microsoft"
BLOCK: Final = 32


@dataclass(slots=True)
class Decoder:
    """Sizes of the model, and how its products are written: float32, qoperator or qdq."""

    form: str = "float32"
    level: int = 0
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    inner: int = 128
    vocab: int = 160
    context: int = 128
    _rng: Any = field(default_factory=lambda: np.random.default_rng(7))
    _nodes: list[Any] = field(default_factory=list)
    _weights: list[Any] = field(default_factory=list)

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    def model(self) -> Any:
        """The model, its weights inside."""
        self._mask()
        self._weight("table", self._rng.standard_normal((self.vocab, self.hidden)))
        x = self._node("Gather", ["table", "input_ids"], "stream")
        inputs = [_info("input_ids", TensorProto.INT64, ["batch", "length"])]
        inputs.append(_info("attention_mask", TensorProto.INT64, ["batch", "total"]))
        outputs = [_info("logits", TensorProto.FLOAT, ["batch", "length", self.vocab])]
        for layer in range(self.layers):
            x = self._layer(layer, x)
            for kind in ("key", "value"):
                shape: list[Any] = ["batch", self.kv_heads, "past", self.head]
                inputs.append(_info(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT, shape))
                shape = ["batch", self.kv_heads, "total", self.head]
                outputs.append(_info(f"present.{layer}.{kind}", TensorProto.FLOAT, shape))
        x = self._norm(x, "end")
        self._linear("out", x, self.hidden, self.vocab, "logits")
        graph = helper.make_graph(self._nodes, "decoder", inputs, outputs, self._weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def save(self, path: Path) -> Path:
        """The model in a file, its weights beside it."""
        onnx.save(
            self.model(),
            path,
            save_as_external_data=True,
            location=f"{path.name}.data",
            size_threshold=256,
        )
        return path

    def _node(
        self, op: str, inputs: list[str], *outputs: str, domain: str = "", **attrs: Any
    ) -> str:
        self._nodes.append(
            helper.make_node(
                op, inputs, list(outputs), f"{outputs[0]}.{op}", domain=domain, **attrs
            )
        )
        return outputs[0]

    def _weight(self, name: str, array: Any) -> str:
        kept = array.astype(np.float32) if array.dtype == np.float64 else array
        self._weights.append(onnx.numpy_helper.from_array(kept, name))
        return name

    def _mask(self) -> None:
        for name, value in (("one", [1]), ("axis", [1]), ("second", 1)):
            self._weight(name, np.array(value))
        self._node("ReduceSum", ["attention_mask", "axis"], "counts", keepdims=0)
        self._node("Sub", ["counts", "one"], "last")
        self._node("Cast", ["last"], "lengths", to=TensorProto.INT32)
        self._node("Shape", ["attention_mask"], "mask_shape")
        self._node("Gather", ["mask_shape", "second"], "columns")
        self._node("Cast", ["columns"], "total_length", to=TensorProto.INT32)
        exponents = np.arange(0, self.head, 2) / self.head
        angles = np.outer(np.arange(self.context), 10000.0**-exponents)
        self._weight("cos", np.cos(angles))
        self._weight("sin", np.sin(angles))

    def _norm(self, x: str, name: str) -> str:
        scale = self._weight(f"{name}.scale", self._rng.uniform(0.5, 1.5, self.hidden))
        return self._node("SimplifiedLayerNormalization", [x, scale], name, epsilon=1e-5)

    def _layer(self, layer: int, x: str) -> str:
        packed = (self.heads + 2 * self.kv_heads) * self.head
        qkv = self._linear(f"{layer}.qkv", self._norm(x, f"{layer}.in"), self.hidden, packed)
        past = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        present = [f"present.{layer}.key", f"present.{layer}.value"]
        y = self._node(
            "GroupQueryAttention",
            [qkv, "", "", *past, "lengths", "total_length", "cos", "sin"],
            f"{layer}.attention",
            *present,
            domain=MICROSOFT,
            num_heads=self.heads,
            kv_num_heads=self.kv_heads,
            do_rotary=1,
        )
        y = self._linear(f"{layer}.o", y, self.hidden, self.hidden)
        scale = self._weight(f"{layer}.post.scale", self._rng.uniform(0.5, 1.5, self.hidden))
        outputs = (f"{layer}.post", "", "", f"{layer}.middle")
        x = self._node(
            "SkipSimplifiedLayerNormalization", [x, y, scale], *outputs,
            domain=MICROSOFT, epsilon=1e-5,
        )  # fmt: skip
        both = self._linear(f"{layer}.up", x, self.hidden, 2 * self.inner)
        self._node("Split", [both], f"{layer}.gate", f"{layer}.rest", axis=-1, num_outputs=2)
        self._node("Sigmoid", [f"{layer}.gate"], f"{layer}.sigmoid")
        self._node("Mul", [f"{layer}.gate", f"{layer}.sigmoid"], f"{layer}.silu")
        y = self._node("Mul", [f"{layer}.silu", f"{layer}.rest"], f"{layer}.gated")
        y = self._linear(f"{layer}.down", y, self.inner, self.hidden)
        return self._node("Add", [f"{layer}.middle", y], f"{layer}.end")

    def _linear(self, name: str, x: str, k: int, n: int, out: str = "") -> str:
        """x W for a random W of 4 bits in blocks along k."""
        blocks, out = k // BLOCK, out or f"{name}.out"
        q = self._rng.integers(0, 16, (k, n), np.uint8)
        scale = (self._rng.uniform(0.5, 1.5, (blocks, n)) * 0.25 / np.sqrt(k)).astype(np.float32)
        zero = self._rng.integers(6, 11, (blocks, n), np.uint8)
        if self.form == "float32":
            full = (q.reshape(blocks, BLOCK, n).astype(np.float32) - zero[:, None]) * scale[:, None]
            return self._node("MatMul", [x, self._weight(f"{name}.w", full.reshape(k, n))], out)
        if self.form == "qdq":
            inputs = [
                self._four_bits(f"{name}.q", q),
                self._weight(f"{name}.scale", scale),
                self._four_bits(f"{name}.zero", zero),
            ]
            w = self._node("DequantizeLinear", inputs, f"{name}.w", axis=0, block_size=BLOCK)
            return self._node("MatMul", [x, w], out)
        zeros = np.pad(zero.T, ((0, 0), (0, blocks % 2)))
        inputs = [
            x,
            self._weight(f"{name}.q", _paired(q.T).reshape(n, blocks, BLOCK // 2)),
            self._weight(f"{name}.scale", np.ascontiguousarray(scale.T)),
            self._weight(f"{name}.zero", _paired(zeros)),
        ]
        return self._node(
            "MatMulNBits", inputs, out, domain=MICROSOFT,
            K=k, N=n, bits=4, block_size=BLOCK, accuracy_level=self.level,
        )  # fmt: skip

    def _four_bits(self, name: str, codes: Any) -> str:
        raw = _paired(codes.reshape(1, -1)).tobytes()
        self._weights.append(
            helper.make_tensor(name, TensorProto.UINT4, codes.shape, raw, raw=True)
        )
        return name


def _paired(codes: Any) -> Any:
    """Two numbers to a byte along the last axis, the first in the low half."""
    return np.ascontiguousarray(codes[..., 0::2] | (codes[..., 1::2] << 4))


def _info(name: str, dtype: int, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def empty_caches(session: Any, batch: int = 1) -> dict[str, Any]:
    """Feeds for a prompt: caches without rows."""
    return {
        i.name: np.zeros((batch, i.shape[1], 0, i.shape[3]), np.float32)
        for i in session.get_inputs()
        if i.name.startswith("past")
    }


def generate(session: Any, prompt: Any, count: int) -> list[Any]:
    """The logits of a prompt, and of `count` more tokens, each the likeliest so far."""
    ids, caches = np.asarray(prompt, np.int64), empty_caches(session, len(prompt))
    total, found = ids.shape[1], []
    for _ in range(count + 1):
        mask = np.ones((len(prompt), total), np.int64)
        logits, *present = session.run(None, {"input_ids": ids, "attention_mask": mask, **caches})
        found.append(logits)
        ids, total = logits[:, -1:].argmax(-1), total + 1
        caches = dict(zip(caches, present, strict=True))
    return found
