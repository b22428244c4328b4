"""Perplexities of a language model whose weights are quantized in several ways.

    python bench/perplexity.py FOLDER --bits 4 3 --blocks 32 128 --methods rtn k_quant gptq

FOLDER has model.onnx, whose MatMul nodes are quantized, and tokens [samples, length]:
calibration.npy for GPTQ and AWQ, and test.npy. bench/small_decoder.py and bench/smollm2.py make
such folders. Prints, per way, the perplexity on test.npy, how much it adds to that of the model
itself, the share of that which rounding to nearest (rtn: MatMulNBitsQuantizer's default) adds, the
bytes of the model and the seconds it took. All ways of one line of bits and block have equal bytes,
but hqq, whose zero points are floats. 3 bits are 8 levels in codes of 4 bits.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import tempfile
import time
from typing import Any

import numpy as np

import sardonyx
from sardonyx.quantization import matmul_nbits as tools

BATCH = 4
METHODS = ("rtn", "rtn_minmax", "k_quant", "hqq", "awq", "gptq", "gptq_sweeps", "gptq_awq")


def feed(session: Any, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs of a decoder for tokens, with empty caches."""
    found: dict[str, np.ndarray] = {}
    for value in session.get_inputs():
        if value.name == "input_ids":
            found[value.name] = ids.astype(np.int64)
        elif value.name == "attention_mask":
            found[value.name] = np.ones(ids.shape, np.int64)
        else:
            _, heads, _, size = value.shape
            found[value.name] = np.zeros((len(ids), heads, 0, size), np.float32)
    return found


def perplexity(path: pathlib.Path, tokens: np.ndarray) -> float:
    """Return the perplexity of a model, which predicts each token from those before it."""
    session, total = sardonyx.InferenceSession(path), 0.0
    for start in range(0, len(tokens), BATCH):
        ids = tokens[start : start + BATCH]
        logits = session.run(["logits"], feed(session, ids))[0][:, :-1]
        for row, target in zip(logits, ids[:, 1:].astype(np.int64), strict=True):
            shifted = row - row.max(-1, keepdims=True)
            chosen = np.take_along_axis(shifted, target[:, None], -1)[:, 0]
            sums = np.exp(shifted).sum(-1, dtype=np.float64)
            total += float((np.log(sums) - chosen).sum(dtype=np.float64))
    return float(np.exp(total / tokens[:, 1:].size))


def config(method: str, bits: int, block: int, samples: list[Any]) -> Any:
    """Return the configuration of a method; None is the default of MatMulNBitsQuantizer."""
    if method.startswith("gptq"):
        sweeps = 3 if method == "gptq_sweeps" else 0
        return tools.GPTQWeightOnlyQuantConfig(samples, sweeps=sweeps, awq=method == "gptq_awq")
    return {
        "rtn": lambda: None,
        "rtn_minmax": tools.RTNWeightOnlyQuantConfig,
        "k_quant": tools.KQuantWeightOnlyQuantConfig,
        "hqq": lambda: tools.HQQWeightOnlyQuantConfig(block, bits),
        "awq": lambda: tools.AWQWeightOnlyQuantConfig(samples),
    }[method]()


def quantized(quantizer: Any, test: np.ndarray) -> tuple[float, str]:
    """Return the perplexity of a quantized model, and its size and the time it took, as text."""
    with tempfile.TemporaryDirectory() as folder:
        out, began = pathlib.Path(folder) / "model.onnx", time.monotonic()
        quantizer.process()
        quantizer.model.save_model_to_file(out, True)
        seconds = time.monotonic() - began
        size = sum(p.stat().st_size for p in out.parent.iterdir())
        return perplexity(out, test), f"{size} bytes, {seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--bits", type=int, nargs="+", default=[4])
    parser.add_argument("--blocks", type=int, nargs="+", default=[128])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["rtn", "k_quant", "gptq"])
    parser.add_argument("--samples", type=int, default=48, help="for calibration, and for tests")
    parser.add_argument("--symmetric", action="store_true")
    arguments = parser.parse_args()
    path, limit = arguments.folder / "model.onnx", arguments.samples
    calibration, test = (
        np.load(arguments.folder / f"{n}.npy")[:limit] for n in ("calibration", "test")
    )
    session = sardonyx.InferenceSession(path)
    starts = range(0, len(calibration), BATCH)
    samples = [feed(session, calibration[i : i + BATCH]) for i in starts]
    del session
    exact = perplexity(path, test)
    print(f"{'float':12} {exact:9.4f}", flush=True)
    for bits in arguments.bits:
        for block in arguments.blocks:
            added = 0.0
            for method in arguments.methods:
                chosen = config(method, bits, block, samples)
                given = {"is_symmetric": arguments.symmetric, "algo_config": chosen}
                quantizer = tools.MatMulNBitsQuantizer(str(path), bits, block, **given)
                found, how = quantized(quantizer, test)
                added = found - exact if method == "rtn" else added
                share = f"{(found - exact) / added:7.1%} of rtn's" if added else ""
                line = f"{method:12} {found:9.4f} +{found - exact:.4f} {share:16}"
                print(f"{line} {bits} bits, blocks of {block}, {how}", flush=True)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB at most")


if __name__ == "__main__":
    main()
