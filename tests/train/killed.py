"""A small training run in a process that is killed at random moments, and resumed.

The model has what makes resumption hard: BatchNormalization with running statistics, Dropout, data
that draws from numpy's global generator, accumulation, and an optimizer with state.

    python -m tests.train.killed FOLDER        # one process: continues what FOLDER has
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sardonyx.train import AdamW, fit
from sardonyx.train.checkpoint import CheckpointFolder, load_tensors

ROOT = Path(__file__).resolve().parents[2]
STEPS = 240
LIVES_S = 0.3  # at most this long does a process live after its first step
STARTS_S = 1.0  # one in four is killed before, in this time

MODEL = """
    <ir_version: 10, opset_import: ["": 21]>
    classifier (float[batch, 8] x, int64[batch] labels) => (float loss) {
        h = Gemm(x, w1, b1)
        n, new_mean, new_var = BatchNormalization<training_mode=1>(h, scale, shift, mean, var)
        a = Relu(n)
        d = Dropout(a, ratio, training)
        scores = Gemm(d, w2, b2)
        loss = SoftmaxCrossEntropyLoss(scores, labels)
    }"""


def classifier() -> onnx.ModelProto:
    """The model, with weights from a fixed seed."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 64), "b1": (64,), "w2": (64, 4), "b2": (4,)}
    arrays: dict[str, Any] = {
        name: (0.3 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    for name, value in (("scale", 1), ("shift", 0), ("mean", 0), ("var", 1)):
        arrays[name] = np.full(64, value, np.float32)
    arrays |= {"ratio": np.float32(0.2), "training": np.array(True)}
    model = onnx.parser.parse_model(MODEL)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


def data(epoch: int) -> Iterator[dict[str, Any]]:
    """Feeds of an epoch, drawn from the global generator."""
    for _ in range(20):
        labels = np.random.randint(0, 4, 16)
        x = np.random.standard_normal((16, 8)) + labels[:, None]
        yield {"x": x.astype(np.float32), "labels": labels}


def train(folder: Path) -> None:
    """Train to the end, from the newest checkpoint on."""
    random.seed(7)
    np.random.seed(7)
    fit(
        classifier(),
        data,
        steps=STEPS,
        optimizer=AdamW(lr=0.01),
        max_norm=1.0,
        accumulate=2,
        checkpoints=CheckpointFolder(folder, keep=2),
        save_every=3,
        resume=True,
        on_step=lambda report: print(report.step, flush=True),
    )


def final(folder: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint: parameters, states, losses, generators."""
    path = CheckpointFolder(folder).steps()[STEPS]
    return {name: array.tobytes() for name, array in load_tensors(path).tensors.items()}


def start(folder: Path) -> subprocess.Popen[str]:
    """A process that trains."""
    command = [sys.executable, "-m", "tests.train.killed", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def kill_once(folder: Path, rng: random.Random) -> bool:
    """Start a process and kill it at a random moment; False if it had ended by itself."""
    with start(folder) as process:
        assert process.stdout is not None
        if rng.random() < 0.25:
            time.sleep(rng.uniform(0, STARTS_S))
        else:
            process.stdout.readline()
            time.sleep(rng.uniform(0, LIVES_S))
        is_alive = process.poll() is None
        process.kill()
    for path in CheckpointFolder(folder).steps().values():
        load_tensors(path)  # raises unless it is whole
    return is_alive


def check(folder: Path, kills: int, seed: int) -> str:
    """Kill runs until there were enough kills; every run must end as one that was not killed.

    Returns what was done; raises AssertionError for a difference.
    """
    rng = random.Random(seed)
    train(folder / "whole")
    want = final(folder / "whole")
    done, runs = 0, 0
    while done < kills:
        runs += 1
        run = folder / f"run{runs}"
        while done < kills and kill_once(run, rng):
            done += 1
        with start(run) as process:
            assert process.stdout is not None
            process.stdout.read()
        assert process.returncode == 0, "a run that was not killed failed"
        got = final(run)
        different = [name for name in want if got.get(name) != want[name]]
        assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())
        assert not different, f"run {runs} ended with other {', '.join(different)}"
    return f"{done} kills of {runs} runs: all ended with the same {len(want)} tensors, bit by bit"


if __name__ == "__main__":
    train(Path(sys.argv[1]))
