"""A decoder with 4-bit weights and LoRA adapters, as onnxruntime's model builder writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.train.models import Net

Array = np.ndarray[Any, np.dtype[Any]]
MS = {"domain": "com.microsoft"}
BLOCK = 32


class Decoder(Net):
    """The model under construction; the weights that are not adapters are constants."""

    def __init__(self, layers: int, sizes: tuple[int, ...], is_quantized: bool) -> None:
        super().__init__()
        self.width, self.heads, self.kv_heads, self.inner, self.words = sizes
        self._head = self.width // self.heads
        self._is_quantized = is_quantized
        self.frozen: dict[str, Array] = {}
        angles = np.arange(512)[:, None] * 0.1 ** np.arange(self._head // 2)
        self._fixed("cos", np.cos(angles).astype(np.float32))
        self._fixed("sin", np.sin(angles).astype(np.float32))
        table = self._rng.standard_normal((self.words, self.width)).astype(np.float32)
        x = self("Gather", self._fixed("table", table), "tokens")
        one = np.ones(self.width, np.float32)
        norm = self("SimplifiedLayerNormalization", x, self._fixed("norm", one))
        for i in range(layers):
            x, norm = self._layer(f"layer{i}.", x, norm)
        self.scores = self._product("lm_head", norm, self.words)

    def _fixed(self, name: str, array: Array) -> str:
        self.frozen[name] = array
        return name

    def _product(self, name: str, x: str, n: int, k: int = 0) -> str:
        """A product with a weight [k, n] of 4 bits, or the same numbers as float32."""
        k = k or self.width
        codes = self._rng.integers(0, 256, (n, k // BLOCK, BLOCK // 2)).astype(np.uint8)
        steps = (self._rng.uniform(0.5, 1, (n, k // BLOCK)) / 4 / k**0.5).astype(np.float32)
        if self._is_quantized:
            names = self._fixed(f"{name}.q", codes), self._fixed(f"{name}.s", steps)
            return self("MatMulNBits", x, *names, K=k, N=n, block_size=BLOCK, **MS)
        unpacked = np.stack((codes & 15, codes >> 4), -1).reshape(n, k).astype(np.float32) - 8
        return self("MatMul", x, self._fixed(name, (unpacked * np.repeat(steps, BLOCK, 1)).T))

    def _adapted(self, name: str, x: str, n: int) -> str:
        y = self._product(name, x, n)
        low = self("MatMul", x, self.weight(f"{name}.A", self.width, 4))
        return self("Add", y, self("MatMul", low, self.weight(f"{name}.B", 4, n)))

    def _layer(self, prefix: str, x: str, norm: str) -> tuple[str, str]:
        kv = self.kv_heads * self._head
        q = self._adapted(f"{prefix}q", norm, self.width)
        k = self._product(f"{prefix}k", norm, kv)
        v = self._adapted(f"{prefix}v", norm, kv)
        y = self(
            "GroupQueryAttention", q, k, v, "", "", "lengths", "total", "cos", "sin",
            num_heads=self.heads, kv_num_heads=self.kv_heads, do_rotary=1, outputs=3, **MS,
        )  # fmt: skip
        y = self._product(f"{prefix}o", y, self.width)
        norm = self._added_norm(f"{prefix}norm1", x, y)
        x = f"{norm}.3"
        gate, up = (self._product(f"{prefix}{n}", norm, self.inner) for n in ("gate", "up"))
        active = self("Mul", self("Mul", gate, self("Sigmoid", gate)), up)
        down = self._product(f"{prefix}down", active, self.width, self.inner)
        norm = self._added_norm(f"{prefix}norm2", x, down)
        return f"{norm}.3", norm

    def _added_norm(self, name: str, x: str, y: str) -> str:
        scale = self._fixed(name, np.ones(self.width, np.float32))
        return self("SkipSimplifiedLayerNormalization", x, y, scale, outputs=4, **MS)

    def built(self) -> Any:
        flat = self("Reshape", self.scores, self.const(-1, self.words))
        labels = self("Reshape", "labels", self.const(-1))
        loss = self("SoftmaxCrossEntropyLoss", flat, labels)
        ints, i32 = TensorProto.INT64, TensorProto.INT32
        inputs = {
            "tokens": (ints, ["batch", "length"]), "labels": (ints, ["batch", "length"]),
            "lengths": (i32, ["batch"]), "total": (i32, []),
        }  # fmt: skip
        model = self.model(inputs, {"loss": loss})
        model.graph.initializer.extend(
            numpy_helper.from_array(w, n) for n, w in self.frozen.items()
        )
        model.opset_import.append(helper.make_opsetid(MS["domain"], 1))
        return model


def feeds_of(decoder: Decoder, batch: int, length: int) -> dict[str, Any]:
    tokens = np.random.default_rng(0).integers(0, decoder.words, (batch, length + 1))
    return {
        "tokens": tokens[:, :-1], "labels": tokens[:, 1:],
        "lengths": np.full(batch, length - 1, np.int32), "total": np.array(length, np.int32),
    }  # fmt: skip
