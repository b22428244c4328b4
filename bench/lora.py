"""Time and memory of a LoRA step over 4-bit weights, and over the same weights as float32.

    python -m bench.lora [--layers 30] [--length 256] [--rounds 3]

A decoder with the sizes of SmolLM2-135M and weights at random. Each row is a fresh process: CPU
time of a step, and the process's anonymous memory after it.
"""

from __future__ import annotations

import argparse
import gc
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sardonyx
from sardonyx.train import gradient
from tests.train.decoder import Decoder, feeds_of

SIZES = (576, 9, 3, 1536, 49152)  # width, heads, heads of keys, inner width, words


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", choices=("int4", "float32"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments)
        return
    for weights in ("int4", "float32"):
        command = [sys.executable, "-m", "bench.lora", *sys.argv[1:], "--worker", weights]
        subprocess.run(command, check=True)


def measure(arguments: argparse.Namespace) -> None:
    """Print the figures of one kind of weights."""
    decoder = Decoder(arguments.layers, SIZES, is_quantized=arguments.worker == "int4")
    feeds, names = feeds_of(decoder, 1, arguments.length), list(decoder.weights)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(decoder.built().SerializeToString())
        del decoder
        gc.collect()
        session = sardonyx.InferenceSession(gradient(path, "loss", names))
        session.run(None, feeds)
        seconds = []
        for _ in range(arguments.rounds):
            start = time.process_time()
            session.run(None, feeds)
            seconds.append(time.process_time() - start)
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"Anonymous: +(\d+) kB", text)
    assert found is not None
    print(
        f"{arguments.worker:<8} {min(seconds):6.2f} s CPU  {int(found[1]) / 1e3:7.0f} MB anonymous"
    )


if __name__ == "__main__":
    main()
