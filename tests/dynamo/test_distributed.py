"""Wrapped modules under torchrun: the losses are those of torch alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
if "SARDONYX_STRESS" not in os.environ:
    pytest.skip("groups of processes run in .ci/long", allow_module_level=True)
SCRIPT = Path(__file__).with_name("distributed_training.py")


def trained(kind: str, engine: str, n_processes: int = 2) -> dict[str, Any]:
    """What rank 0 of a group prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    script = [sys.executable, str(SCRIPT), kind, engine]
    result = subprocess.run(
        [*launcher, f"--nproc-per-node={n_processes}", *script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_losses_are_those_of_torch(kind: str) -> None:
    expected, found = trained(kind, "eager"), trained(kind, "sardonyx")
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["graphs"]
