"""A program for onnxruntime-training gives the results that onnxruntime-training wrote.

`tools/training/make_golden.py` makes the folder golden.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sardonyx

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
NETS = ("mlp", "convnet", "transformer", "clipped", "sgd")


def run(*arguments: object) -> None:
    """Run the program on Sardonyx, in another process."""
    command = [sys.executable, "-m", "sardonyx.as_onnxruntime", str(HERE / "program.py")]
    result = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert result.returncode == 0, result.stderr


def compare(name: str, folder: Path, tolerance: float = 1e-5) -> None:
    """Compare losses, rates, outputs and weights with those of onnxruntime-training."""
    theirs = np.load(GOLDEN / name / "results.npz")
    ours = np.load(folder / "results.npz")
    assert set(ours) == set(theirs)
    for key, value in ours.items():
        expected = theirs[key][-len(value) :] if value.ndim else theirs[key]
        np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("name", NETS)
def test_our_artifacts(name, tmp_path):
    run(name, tmp_path)
    compare(name, tmp_path)
    # The exported model has the weights of the end, and is a model for inference.
    session = sardonyx.InferenceSession(tmp_path / "inference.onnx")
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert len(session.get_outputs()) == 1


@pytest.mark.parametrize("name", NETS)
def test_onnxruntimes_artifacts(name, tmp_path):
    run(name, tmp_path, GOLDEN / name)
    compare(name, tmp_path)


@pytest.mark.parametrize("name", NETS)
def test_onnxruntimes_training_is_resumed(name, tmp_path):
    run(name, tmp_path, GOLDEN / name, GOLDEN / name / "half")
    compare(name, tmp_path)


def test_onnxruntimes_checkpoint_with_our_models(tmp_path):
    run("mlp", tmp_path / "ours")
    run("mlp", tmp_path / "rest", tmp_path / "ours", GOLDEN / "mlp" / "half")
    compare("mlp", tmp_path / "rest")


def test_our_checkpoint_is_resumed_to_the_bit(tmp_path):
    run("clipped", tmp_path / "whole")
    run("clipped", tmp_path / "rest", tmp_path / "whole", tmp_path / "whole" / "half")
    whole, rest = (np.load(tmp_path / f / "results.npz") for f in ("whole", "rest"))
    for key, value in rest.items():
        expected = whole[key][-len(value) :] if value.ndim else whole[key]
        assert value.tobytes() == expected.tobytes(), key
