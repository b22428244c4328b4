"""Trains a decoder of 21.4 million parameters on Python's standard library, and exports it.

bench/small_decoder.py OUT_DIR [--steps 1500] [--device cuda]

The model predicts the next byte. It is trained in float32 from a fixed seed, and written as an ONNX
model of the ops that exports of language models have: SimplifiedLayerNormalization, MatMul,
GroupQueryAttention with rotary caches, SwiGLU. OUT_DIR also gets held-out text, in files that
training does not see: `calibration.npy` and `test.npy`, uint8 [samples, 512].

1500 steps take 4 minutes on an H200, and about 5 hours on 2 CPU cores. `--corpus FILE` uses the
text of a file instead of the library of this Python, `--save-text FILE` writes that text.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sysconfig
import time
from typing import Any, Final

import numpy as np

HIDDEN, LAYERS, HEADS, INNER, VOCABULARY, CONTEXT = 512, 7, 8, 1280, 256, 512
HEAD: Final = HIDDEN // HEADS
EPSILON: Final = 1e-5
MICROSOFT: Final = "com.microsoft"
HELD_BACK: Final = 20  # one in so many chunks of text is for calibration or tests
CHUNK: Final = 1 << 16  # bytes


def standard_library() -> bytes:
    """Return the source files of Python's standard library, in the order of their paths."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        p for p in root.rglob("*.py") if not {"site-packages", "dist-packages"} & {*p.parts}
    )
    return b"\n".join(p.read_bytes() for p in files)


def split(text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bytes for training, and samples for calibration and tests, of different chunks."""
    data = np.frombuffer(text, np.uint8)
    chunks = [data[i : i + CHUNK] for i in range(0, data.size - CHUNK, CHUNK)]
    train = np.concatenate([c for i, c in enumerate(chunks) if i % HELD_BACK])
    held = [c.reshape(-1, CONTEXT) for i, c in enumerate(chunks) if i % HELD_BACK == 0]
    calibration = np.concatenate(held[0::2])[::4]
    test = np.concatenate(held[1::2])[::4]
    return train, calibration, test


def network(torch: Any) -> Any:
    """Return the parameters of the model, by name, with the scale of their initialization."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float) -> Any:
        return torch.randn(*shape, generator=generator) * scale

    depth = 1 / math.sqrt(2 * LAYERS)  # of matrices that write to the residual stream
    weights = {"embed": normal(VOCABULARY, HIDDEN, scale=0.02)}
    for i in range(LAYERS):
        for name, rows, columns, scale in (
            ("qkv", HIDDEN, 3 * HIDDEN, 1.0),
            ("out", HIDDEN, HIDDEN, depth),
            ("gate_up", HIDDEN, 2 * INNER, 1.0),
            ("down", INNER, HIDDEN, depth),
        ):
            weights[f"{i}.{name}"] = normal(rows, columns, scale=scale / math.sqrt(rows))
        weights[f"{i}.norm1"] = torch.ones(HIDDEN)
        weights[f"{i}.norm2"] = torch.ones(HIDDEN)
    weights["norm"] = torch.ones(HIDDEN)
    weights["head"] = normal(HIDDEN, VOCABULARY, scale=1 / math.sqrt(HIDDEN))
    return weights


def rotary() -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines [CONTEXT, HEAD / 2]."""
    angles = np.outer(np.arange(CONTEXT), 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def logits(torch: Any, w: Any, ids: Any, caches: Any) -> Any:
    """Return the logits of a batch [samples, CONTEXT]."""
    functional = torch.nn.functional
    cos, sin = caches

    def norm(x: Any, scale: Any) -> Any:
        return functional.rms_norm(x, (HIDDEN,), scale, EPSILON)

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], HEADS, HEAD).transpose(1, 2)

    def rotated(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    x = w["embed"][ids]
    for i in range(LAYERS):
        q, k, v = (norm(x, w[f"{i}.norm1"]) @ w[f"{i}.qkv"]).chunk(3, -1)
        y = functional.scaled_dot_product_attention(
            rotated(heads(q)), rotated(heads(k)), heads(v), is_causal=True
        )
        x = x + y.transpose(1, 2).reshape(*ids.shape, HIDDEN) @ w[f"{i}.out"]
        gate, up = (norm(x, w[f"{i}.norm2"]) @ w[f"{i}.gate_up"]).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ w[f"{i}.down"]
    return norm(x, w["norm"]) @ w["head"]


def train(text: np.ndarray, steps: int, device: str, batch: int) -> dict[str, np.ndarray]:
    """Train with AdamW and a cosine schedule; return the parameters."""
    import torch

    weights = {k: v.to(device).requires_grad_() for k, v in network(torch).items()}
    matrices = [v for v in weights.values() if v.ndim == 2]
    vectors = [v for v in weights.values() if v.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    caches = [torch.from_numpy(c).to(device) for c in rotary()]
    data, rng = torch.from_numpy(text.copy()).to(device), np.random.default_rng(0)
    offsets, began = torch.arange(CONTEXT + 1, device=device), time.monotonic()
    for step in range(steps):
        starts = torch.from_numpy(rng.integers(0, text.size - CONTEXT - 1, batch)).to(device)
        tokens = data[starts[:, None] + offsets].long()
        rows = logits(torch, weights, tokens[:, :-1], caches).reshape(-1, VOCABULARY)
        loss = torch.nn.functional.cross_entropy(rows, tokens[:, 1:].reshape(-1))
        progress = step / steps
        rate = (
            1e-3 * min(1.0, (step + 1) / 100) * (0.05 + 0.475 * (1 + math.cos(math.pi * progress)))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(
                f"step {step}: loss {loss.item():.4f}, {time.monotonic() - began:.0f} s", flush=True
            )
    return {k: v.detach().cpu().numpy() for k, v in weights.items()}


class Writer:
    """Collects the nodes, inputs and outputs of the ONNX model."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def node(
        self, op: str, inputs: list[str], *outputs: str, domain: str = "", **attrs: Any
    ) -> str:
        """Add a node; return the name of its first output."""
        from onnx import helper

        name = f"{outputs[0]}/{op}"
        made = helper.make_node(op, inputs, list(outputs), name=name, domain=domain, **attrs)
        self.nodes.append(made)
        return outputs[0]

    def norm(self, x: str, scale: str, out: str) -> str:
        """Add an RMS normalization."""
        op = "SimplifiedLayerNormalization"
        return self.node(op, [x, scale], out, axis=-1, epsilon=EPSILON)

    def lengths(self) -> None:
        """Add the lengths that attention needs, from the mask."""
        to = 6  # int32
        self.node("ReduceSum", ["attention_mask", "axis"], "tokens", keepdims=0)
        self.node("Sub", ["tokens", "one"], "last")
        self.node("Cast", ["last"], "seqlens", to=to)
        self.node("Shape", ["attention_mask"], "mask_shape")
        self.node("Gather", ["mask_shape", "one"], "total64")
        self.node("Cast", ["total64"], "total", to=to)

    def layer(self, i: int, x: str, value: Any) -> str:
        """Add attention and SwiGLU of a layer, with its caches."""
        qkv = self.node(
            "MatMul", [self.norm(x, f"{i}.norm1", f"{i}.in"), f"{i}.qkv"], f"{i}.qkv_out"
        )
        past = [f"past.{i}.key", f"past.{i}.value"]
        present = [f"present.{i}.key", f"present.{i}.value"]
        self.inputs += [value(n, 1, ["batch", HEADS, "past", HEAD]) for n in past]
        self.outputs += [value(n, 1, ["batch", HEADS, "total", HEAD]) for n in present]
        read = [qkv, "", "", *past, "seqlens", "total", "cos", "sin"]
        sizes = {"num_heads": HEADS, "kv_num_heads": HEADS, "do_rotary": 1}
        attended = self.node(
            "GroupQueryAttention", read, f"{i}.attention", *present, domain=MICROSOFT, **sizes
        )
        x = self.node("Add", [x, self.node("MatMul", [attended, f"{i}.out"], f"{i}.o")], f"{i}.mid")
        both = [self.norm(x, f"{i}.norm2", f"{i}.post"), f"{i}.gate_up"]
        self.node("MatMul", both, f"{i}.gate_up_out")
        halves = f"{i}.gate", f"{i}.up"
        self.node("Split", [f"{i}.gate_up_out"], *halves, axis=-1, num_outputs=2)
        self.node("Sigmoid", [f"{i}.gate"], f"{i}.sigmoid")
        self.node("Mul", [f"{i}.gate", f"{i}.sigmoid"], f"{i}.silu")
        self.node("Mul", [f"{i}.silu", f"{i}.up"], f"{i}.inner")
        down = self.node("MatMul", [f"{i}.inner", f"{i}.down"], f"{i}.down_out")
        return self.node("Add", [x, down], f"{i}.end")


def export(weights: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Write the ONNX model."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    cos, sin = rotary()
    constants = {**weights, "cos": cos, "sin": sin, "axis": np.array([1]), "one": np.array(1)}
    writer, value = Writer(), helper.make_tensor_value_info
    writer.inputs.append(value("input_ids", TensorProto.INT64, ["batch", "seq"]))
    writer.inputs.append(value("attention_mask", TensorProto.INT64, ["batch", "total"]))
    writer.outputs.append(value("logits", TensorProto.FLOAT, ["batch", "seq", VOCABULARY]))
    writer.lengths()
    x = writer.node("Gather", ["embed", "input_ids"], "x")
    for i in range(LAYERS):
        x = writer.layer(i, x, value)
    writer.node("MatMul", [writer.norm(x, "norm", "final"), "head"], "logits")
    tensors = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    inputs, outputs = writer.inputs, writer.outputs
    graph = helper.make_graph(writer.nodes, "decoder", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opsets), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--corpus", type=pathlib.Path)
    parser.add_argument("--save-text", type=pathlib.Path)
    parser.add_argument(
        "--weights", type=pathlib.Path, help="an .npz to export instead of training"
    )
    arguments = parser.parse_args()
    text = arguments.corpus.read_bytes() if arguments.corpus else standard_library()
    if arguments.save_text:
        arguments.save_text.write_bytes(text)
        return
    training, calibration, test = split(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    np.save(arguments.out / "calibration.npy", calibration)
    np.save(arguments.out / "test.npy", test)
    print(f"{training.size} bytes for training, {len(calibration)} and {len(test)} samples")
    if arguments.weights:
        weights = dict(np.load(arguments.weights))
    else:
        weights = train(training, arguments.steps, arguments.device, arguments.batch)
        np.savez(arguments.out / "weights.npz", **weights)
    print(sum(w.size for w in weights.values()), "parameters")
    export(weights, arguments.out / "model.onnx")


if __name__ == "__main__":
    main()
