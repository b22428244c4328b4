"""Decode and prompt of language models in 4 bits on a device, against its bandwidth and torch.

    python -m bench.gpu_decode [--sizes 1b,phi3-mini] [--zoo FOLDER] [--work FOLDER]
    python -m bench.gpu_decode --device cpu --sizes tiny --context 64 --prompt 8 --tokens 4

Models are those of make_llm.py in --zoo, as MatMulNBits nodes, kept in --work. Every tensor is
bound once: past and present of a layer are one buffer of --context rows, the mask has as many
columns and its ones grow, so that sizes never change and one captured graph serves each token. The
greedy token goes back to the input on the device. The prompt is fed with a mask of its own length
into the same buffers.

"weights" are the bytes of weights, scales and zero points that the model stores for its products,
read once per token, and "caches" those of the keys and values that a token reads besides, in the
mean; "GB/s" is weights over the time of a token, "share" its part of what a product of a bf16
matrix and a vector reads in the same run, and "both" that of weights and caches. "torch" is the
prompt by torch alone in bf16: the same linear layers and causal attention, nothing else. "differs"
is the largest difference of logits of the prompt and of --checked steps from those of our CPU
provider, relative to the largest value, all without TF32; what that adds is printed for the prompt.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import sardonyx
from bench.devices import (
    Bound,
    add_arguments,
    difference,
    elsewhere,
    milliseconds,
    provider,
    script,
    synchronize,
)
from bench.gpu_profile import CALLS, show

LOOKED_UP = ("embed_tokens", "cos_cache", "sin_cache")  # of which a token reads single rows


def main() -> None:
    given = arguments()
    torch.backends.cuda.matmul.allow_tf32 = bool(given.tf32)
    sizes = script(given.zoo, "make_llm").SIZES
    write_models(given)
    gemv, copied = bandwidth(given.device, given.probe_gb)
    print(f"{given.device}: a bf16 GEMV reads {gemv:.0f} GB/s, a copy moves {copied:.0f} GB/s")
    rows = [measure(given, name, sizes[name], gemv) for name in given.sizes]
    report(rows)
    if given.json:
        given.json.write_text(json.dumps({"gemv": gemv, "copy": copied, "rows": rows}, indent=1))


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--sizes", default="1b,phi3-mini", help="of make_llm.py, by commas")
    parser.add_argument("--context", type=int, default=1024, help="rows of the caches")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--checked", type=int, default=4, help="steps that the CPU does as well")
    parser.add_argument("--level", type=int, default=0, help="accuracy_level; 4: int8 on the CPU")
    parser.add_argument("--tf32", type=int, choices=(0, 1), default=1, help="for the prompt")
    parser.add_argument("--probe-gb", type=float, default=4, help="bytes that the bandwidth is of")
    parser.add_argument("--profile", action="store_true", help="shows the kernels as well")
    given = parser.parse_args()
    given.device, given.sizes = torch.device(given.device), given.sizes.split(",")
    if given.prompt + max(given.tokens, given.checked, CALLS) + 1 > given.context:
        parser.error("the prompt and the tokens are longer than --context")
    return given


def folder_of(given: argparse.Namespace, name: str) -> Path:
    folder: Path = given.work / f"llm-{name}-level{given.level}"
    return folder


def write_models(given: argparse.Namespace) -> None:
    """Makes the models that are not there yet, all at once."""
    running = []
    for name in given.sizes:
        folder = folder_of(given, name)
        if (folder / "model.onnx").exists():
            continue
        command = [sys.executable, str(given.zoo / "make_llm.py"), str(folder), "--size", name]
        command += ["--format", "qoperator", "--accuracy-level", str(given.level)]
        running.append(subprocess.Popen(command))
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit("make_llm.py failed")


def bandwidth(device: torch.device, size_gb: float) -> tuple[float, float]:
    """GB/s that a bf16 GEMV reads, and that a copy reads and writes."""
    columns = 16384
    matrix = torch.randn(
        max(1, int(size_gb * 1e9 / 2 / columns)), columns, device=device, dtype=torch.bfloat16
    )
    vector = torch.randn(columns, device=device, dtype=torch.bfloat16)
    other = torch.empty_like(matrix)
    calls: dict[str, Callable[[], Any]] = {
        "gemv": lambda: torch.mv(matrix, vector),
        "copy": lambda: other.copy_(matrix),
    }
    ms = milliseconds(calls, device, rounds=3, seconds=0.05)
    size = matrix.nbytes
    return size / ms["gemv"] / 1e6, 2 * size / ms["copy"] / 1e6


def weight_bytes(path: Path) -> int:
    """Return the bytes of weights that a token reads."""
    found = 0
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.name not in LOOKED_UP:
            found += sum(int(e.value) for e in tensor.external_data if e.key == "length")
    return found


def cache_bytes(given: argparse.Namespace, size: Any) -> int:
    """Return the mean bytes of caches that a token of a round reads."""
    keys = given.prompt + (given.tokens - 1) / 2
    return int(keys * 2 * size.layers * size.kv_heads * size.head * 4)


class Decoder:
    """A session whose caches, mask and token stay on the device."""

    def __init__(self, given: argparse.Namespace, path: Path, size: Any) -> None:
        self.device, self._size, self._prompt = given.device, size, given.prompt
        graph = {"enable_cuda_graph": 1} if self.device.type == "cuda" else {}
        chosen = provider(self.device, use_tf32=given.tf32, **graph)
        self.session = sardonyx.InferenceSession(path, providers=[chosen, "CPUExecutionProvider"])
        shape = (1, size.kv_heads, given.context, size.head)
        self._caches = [torch.zeros(shape, device=self.device) for _ in range(2 * size.layers)]
        self.token = self._ints(1, 1)
        self._mask = self._ints(1, given.context)
        self._position = self._ints(1)
        self._one = self._ints(1, 1) + 1
        self.logits = self._floats(1, 1, size.vocab)
        self.prompt_logits = self._floats(1, given.prompt, size.vocab)
        # Plain ids, so that whoever checks can make them without this class.
        self._ids = torch.arange(given.prompt, device=self.device)[None] % 97
        ones = torch.ones_like(self._ids)
        self.run_prompt = self._bound(self._ids, ones, self.prompt_logits)
        self.run_step = self._bound(self.token, self._mask, self.logits)
        self.take_token = self._take_token
        if self.device.type == "cuda":
            self.take_token = self._recorded(self._take_token)

    def _ints(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _floats(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, math.nan, device=self.device)

    def _bound(self, ids: torch.Tensor, mask: torch.Tensor, logits: torch.Tensor) -> Bound:
        parts = [f"{i}.{part}" for i in range(self._size.layers) for part in ("key", "value")]
        inputs = {"input_ids": ids, "attention_mask": mask}
        outputs = {"logits": logits}
        for part, cache in zip(parts, self._caches, strict=True):
            inputs[f"past_key_values.{part}"] = outputs[f"present.{part}"] = cache
        return Bound(self.session, inputs, outputs)

    def begin(self) -> None:
        """The prompt, and its best token as the first to be fed."""
        self.run_prompt()
        torch.argmax(self.prompt_logits[:, -1], -1, keepdim=True, out=self.token)
        self._mask.zero_()
        self._mask[:, : self._prompt + 1] = 1
        self._position.fill_(self._prompt + 1)

    def step(self) -> None:
        """The logits of one token, and the best as the next to be fed."""
        self.run_step()
        self.take_token()

    def _take_token(self) -> None:
        torch.argmax(self.logits[:, -1], -1, keepdim=True, out=self.token)
        self._mask.index_copy_(1, self._position, self._one)
        self._position.add_(1)

    def _recorded(self, call: Callable[[], None]) -> Callable[[], None]:
        """A call as a CUDA graph; it needs to have run once."""
        self.begin()
        call()
        graph = torch.cuda.CUDAGraph()
        synchronize(self.device)
        with torch.cuda.graph(graph):
            call()
        return graph.replay


def measure(given: argparse.Namespace, name: str, size: Any, gemv: float) -> dict[str, Any]:
    """One model's figures."""
    path = folder_of(given, name) / "model.onnx"
    began = time.perf_counter()
    decoder = Decoder(given, path, size)
    decoder.begin()
    synchronize(given.device)
    print(f"{name}: ready after {time.perf_counter() - began:.1f} s", flush=True)
    seconds = statistics.median([decode(decoder, given.tokens) for _ in range(given.rounds)])
    weights, caches = weight_bytes(path), cache_bytes(given, size)
    speed = weights / seconds / 1e9
    row = {
        "size": name,
        "tokens_per_s": 1 / seconds,
        "ms_per_token": seconds * 1e3,
        "weights": weights,
        "caches": caches,
        "gb_per_s": speed,
        "share": speed / gemv,
        "share_of_both": (weights + caches) / seconds / 1e9 / gemv,
        **prompt(given, decoder, size),
        "differs": check(given, decoder, path, size),
        "elsewhere": elsewhere(decoder.session),
    }
    if given.profile:
        decoder.begin()
        show(f"{name}, a token", {"ours": decoder.step}, given.device)
        show(f"{name}, the prompt", {"ours": decoder.run_prompt}, given.device)
    return row


def decode(decoder: Decoder, tokens: int) -> float:
    """Seconds of a token, after a few that record what is to be recorded."""
    decoder.begin()
    for _ in range(3):
        decoder.step()
    decoder.begin()
    synchronize(decoder.device)
    began = time.perf_counter()
    for _ in range(tokens):
        decoder.step()
    synchronize(decoder.device)
    return (time.perf_counter() - began) / tokens


def prompt(given: argparse.Namespace, decoder: Decoder, size: Any) -> dict[str, float]:
    """Milliseconds of the prompt, and of torch's products and attention of the same sizes."""
    rival = torch_prompt(given, size)
    calls: dict[str, Callable[[], Any]] = {"prompt_ms": decoder.run_prompt, "torch_ms": rival}
    for call in (*calls.values(), *calls.values()):
        call()
    return milliseconds(calls, given.device, rounds=given.rounds, seconds=0.1)


def torch_prompt(given: argparse.Namespace, size: Any) -> Callable[[], torch.Tensor]:
    """All linear layers and the attention of a prompt in bf16, with weights for each layer."""
    wide = (size.heads + 2 * size.kv_heads) * size.head
    shapes = [(wide, size.hidden), (size.hidden, size.heads * size.head)]
    shapes += [(2 * size.inner, size.hidden), (size.hidden, size.inner)]

    def weight(n: int, k: int) -> torch.Tensor:
        made = torch.randn(n, k, device=given.device, dtype=torch.bfloat16)
        return made.mul_(k**-0.5)

    layers = [[weight(*shape) for shape in shapes] for _ in range(size.layers)]
    head = weight(size.vocab, size.hidden)
    x = torch.randn(1, given.prompt, size.hidden, device=given.device, dtype=torch.bfloat16)

    @torch.inference_mode()
    def call() -> torch.Tensor:
        y = x
        for qkv, out, gate_up, down in layers:
            parts = F.linear(y, qkv).view(1, given.prompt, -1, size.head).transpose(1, 2)
            q, k, v = torch.split(parts, [size.heads, size.kv_heads, size.kv_heads], 1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            y = F.linear(y.transpose(1, 2).flatten(2), out)
            gate, up = F.linear(y, gate_up).chunk(2, -1)
            y = F.linear(F.silu(gate) * up, down)
        return F.linear(y, head)

    return call


def check(given: argparse.Namespace, decoder: Decoder, path: Path, size: Any) -> float:
    """How far logits are from those of the CPU provider, which is fed the same tokens."""
    if not given.checked:
        return math.nan
    session = sardonyx.InferenceSession(path, providers=["CPUExecutionProvider"])
    ids = np.arange(given.prompt)[None] % 97
    feeds: dict[str, Any] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    for spec in session.get_inputs()[2:]:
        feeds[spec.name] = np.zeros((1, spec.shape[1], 0, spec.shape[3]), np.float32)
    pasts = list(feeds)[2:]
    want = session.run(None, feeds)
    if given.tf32 and given.device.type == "cuda":
        decoder.begin()
        show_rows(decoder.prompt_logits.cpu().numpy(), want[0])
        decoder = Decoder(argparse.Namespace(**{**vars(given), "tf32": 0}), path, size)
    decoder.begin()
    found = [difference([decoder.prompt_logits], want[:1])]
    for step in range(given.checked):
        feeds["input_ids"] = decoder.token.cpu().numpy().copy()
        feeds["attention_mask"] = np.ones((1, given.prompt + step + 1), np.int64)
        feeds.update(zip(pasts, want[1:], strict=True))
        want = session.run(None, feeds)
        decoder.step()
        found.append(difference([decoder.logits], want[:1]))
    print("logits of the prompt and of each step differ by", *(f"{f:.1e}" for f in found))
    return max(found)


def show_rows(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Says by how much the rows of a prompt differ: in a random network few may differ by much."""
    rows = np.abs(got - want).max(-1) / np.abs(want).max()
    print(f"with TF32 rows of the prompt differ by {np.median(rows):.1e} in the median, ", end="")
    print(f"{rows.max():.1e} at most, {(rows > 0.1).sum()} of {rows.size} by more than 0.1")


def report(rows: list[dict[str, Any]]) -> None:
    heads = ("tokens/s", "ms", "weights", "caches", "GB/s", "share", "both")
    heads += ("prompt", "torch", "differs")
    print(f"\n{'size':<12} " + " ".join(f"{head:>9}" for head in heads))
    for row in rows:
        print(
            f"{row['size']:<12} {row['tokens_per_s']:>9.1f} {row['ms_per_token']:>9.3f} "
            f"{row['weights'] / 1e6:>6.0f} MB {row['caches'] / 1e6:>6.0f} MB "
            f"{row['gb_per_s']:>9.1f} {row['share']:>9.2f} {row['share_of_both']:>9.2f} "
            f"{row['prompt_ms']:>6.1f} ms {row['torch_ms']:>6.1f} ms {row['differs']:>9.1e}"
        )
        if row["elsewhere"]:
            print(f"{row['size']}: nodes left to the CPU: {row['elsewhere']}")


if __name__ == "__main__":
    main()
