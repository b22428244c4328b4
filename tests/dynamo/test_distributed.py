"""Wrapped modules under torchrun: losses are those of torch alone, a dead worker ends the group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch is built without torch.distributed", allow_module_level=True)
SCRIPT = Path(__file__).with_name("distributed_training.py")
STRESS = "SARDONYX_STRESS" in os.environ
TIMEOUT = 300  # seconds, for machines under load: a group takes 10 on two free cores
END = 60  # seconds from the death of a worker to the end of its group, likewise


def launched(n_processes: int, *arguments: str) -> tuple[int, str, str]:
    """Run the script in a group of processes: the exit code, and what the group printed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with subprocess.Popen(
        [*launcher, f"--nproc-per-node={n_processes}", str(SCRIPT), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun stops its workers then, and would not if it were killed
            out, errors = process.communicate(timeout=TIMEOUT)
            pytest.fail(f"the group hangs\n{out[-2000:]}\n{errors[-3000:]}")
    return process.returncode, out, errors


def check_losses(n_processes: int, *kinds: str) -> None:
    """Compare the losses of rank 0."""
    code, out, errors = launched(n_processes, *kinds)
    assert code == 0, errors[-3000:]
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [f["kind"] for f in found] == list(kinds)
    for group in found:
        eager, wrapped = group["eager"], group["wrapped"]
        assert wrapped["losses"] == pytest.approx(eager["losses"], rel=1e-5)
        assert wrapped["graphs"]


def test_losses_are_those_of_torch() -> None:
    check_losses(2, "ddp", "fsdp")


@pytest.mark.skipif(not STRESS, reason="larger groups run in .ci/long")
def test_losses_of_four_processes() -> None:
    check_losses(4, "ddp", "fsdp")


def test_a_killed_worker_ends_the_group() -> None:
    code, out, errors = launched(2, "ddp", "--kill-rank", "1")
    assert code != 0
    assert "SIGKILL" in errors, errors[-3000:]
    killed = next(line for line in out.splitlines() if line.startswith("killed at "))
    assert time.time() - float(killed.split()[-1]) < END
