"""SARDONYX_ISA selects the ISA of the kernels, and the selected one runs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx import _native as native
from sardonyx.models import DIGITS, SAMPLES
from tests.kernels import tensor
from tests.native import programs

ROOT = Path(__file__).parents[2]
LENGTH = 16  # bytes that hold the name of any ISA
ELSEWHERE = "SARDONYX_RUNNER" in os.environ

# Prints the ISA in use, the two names that the probing row writes in a single call and as a step of
# a sequence, and what the model of digits says.
PROBE = """
import json, sys
import numpy as np
import sardonyx
from sardonyx import _native as native
from sardonyx.models import DIGITS, SAMPLES
from tests.native.test_isa import probe_by_call, probe_by_sequence

session = sardonyx.InferenceSession(DIGITS)
scores = session.run(None, {session.get_inputs()[0].name: np.load(SAMPLES)["image"]})[0]
print(json.dumps([native.isa, probe_by_call(""), probe_by_sequence(), scores.tolist()]))
"""


def probe_by_call(isa: str) -> list[str]:
    """The namespace of the row that a single call runs, and the instructions it is built for."""
    made = [np.zeros(LENGTH, np.uint8) for _ in range(2)]
    assert native.call("isa_name", [], [tensor(a) for a in made], [], [], 1, isa) == ""
    return [a.tobytes().rstrip(b"\0").decode() for a in made]


def probe_by_sequence() -> list[str]:
    """The same of the row that a session's sequence runs."""
    u8 = 2
    segment = native.SegmentSpec(0, [], 0, False)
    segment.add_size(native.SizeKind.NUMBER, 0, 0, LENGTH)
    sequence = native.ProgramSpec(2, 0)
    for slot in range(2):
        segment.add_value(native.Storage.EXPORTED, u8, slot, 0, [0], [])
        sequence.add_output(slot)
    segment.add_step("isa_name", [], [0, 1], [], [], [], [], False)
    sequence.add_segment(segment, [])
    runnable = programs.runnable(sequence, {}, [np.uint8, np.uint8])
    made = runnable.run([], [], None, False, None).outputs
    return [a.tobytes().rstrip(b"\0").decode() for a in made]


def names(isa: str) -> list[str]:
    """Return the names that the probe kernels of an ISA return on this machine."""
    return [isa, "neon" if platform.machine() == "aarch64" else isa]


def in_process(isa: str, code: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process that is told to use an ISA."""
    path = os.pathsep.join([str(Path(sardonyx.__file__).parents[1]), str(ROOT)])
    environment = {**os.environ, "SARDONYX_ISA": isa, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def expected() -> Any:
    """Return the output of the digits model."""
    session = sardonyx.InferenceSession(DIGITS)
    return session.run(None, {session.get_inputs()[0].name: np.load(SAMPLES)["image"]})[0]


@pytest.mark.parametrize("isa", native.isas)
def test_the_forced_isa_runs(isa: str, expected: Any) -> None:
    process = in_process(isa, PROBE)
    assert process.returncode == 0, process.stderr
    chosen, called, stepped, scores = json.loads(process.stdout)
    assert chosen == isa
    assert called == stepped == names(isa)
    np.testing.assert_allclose(np.array(scores, np.float32), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(ELSEWHERE, reason="calls go to another machine")
@pytest.mark.parametrize("isa", native.isas)
def test_a_call_can_name_its_isa(isa: str) -> None:
    assert probe_by_call(isa) == names(isa)


@pytest.mark.skipif(not ELSEWHERE, reason="calls stay on this machine")
def test_calls_run_on_the_remote_machine() -> None:
    assert probe_by_call("") == ["base", os.environ["SARDONYX_RUNNER_HAS"]]


def test_the_best_isa_is_the_default() -> None:
    process = in_process("", "from sardonyx import _native as n; print(n.isa)")
    assert process.stdout.strip() == native.isas[-1]


@pytest.mark.parametrize("isa", ["avx9", "BASE", "base avx2"])
def test_an_unknown_isa_is_named(isa: str) -> None:
    code = """
import sardonyx
from sardonyx.models import DIGITS
try:
    sardonyx.InferenceSession(DIGITS)
except sardonyx.capi.onnxruntime_pybind11_state.InvalidArgument as error:
    print(error.what)
"""
    process = in_process(isa, code)
    assert process.stdout.strip() == (
        f"SARDONYX_ISA is {isa!r}, which this build or this CPU lacks; "
        f"there are {', '.join(native.isas)}: set one of these, or unset the variable"
    ), process.stderr


LEAKS = """
template <class T> struct Box { T value; T twice() { return value + value; } };
template struct Box<int>;
namespace sdx::avx2 { template <class T> T half(T x) { return x / 2; } template int half(int); }
"""


@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("nm")), reason="needs g++ and nm")
@pytest.mark.parametrize(("isa", "found"), [("avx2", ["twice"]), ("base", ["twice", "half"])])
def test_leaked_symbols_fail_the_build(tmp_path: Path, isa: str, found: list[str]) -> None:
    (tmp_path / "leaks.cc").write_text(LEAKS)
    library = tmp_path / "leaks.o"
    subprocess.run(["g++", "-std=c++20", "-c", tmp_path / "leaks.cc", "-o", library], check=True)
    tool = [sys.executable, str(ROOT / "tools" / "isa_symbols.py"), "nm", str(library), isa]
    process = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    lines = process.stderr.splitlines()
    assert len(lines) == len(found)
    for name, line in zip(found, lines, strict=True):
        assert name in line
        assert line.endswith(f"is not in the namespace sdx::{isa}")


@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("nm")), reason="needs g++ and nm")
def test_symbols_of_the_namespace_and_hidden_ones_pass(tmp_path: Path) -> None:
    kept = LEAKS.replace("template struct Box<int>;", "namespace { Box<int> one; }")
    (tmp_path / "kept.cc").write_text(kept)
    library = tmp_path / "kept.o"
    subprocess.run(["g++", "-std=c++20", "-c", tmp_path / "kept.cc", "-o", library], check=True)
    tool = [sys.executable, str(ROOT / "tools" / "isa_symbols.py"), "nm", str(library), "avx2"]
    assert subprocess.run(tool, check=False).returncode == 0


STRAYS = """
#include <immintrin.h>
namespace sdx { __m512 plain(__m512 t, __m512bh x) { return _mm512_dpbf16_ps(t, x, x); } }
namespace sdx { __m512 pairs(__m512 t, __m512bh x) { return _mm512_dpbf16_ps(t, x, x); } }
namespace sdx { __m512i reorder(__m512i t, __m512i x) { return _mm512_permutexvar_epi8(x, t); } }
namespace sdx { __m512i permute(__m512i t, __m512i x) { return _mm512_permutexvar_epi8(x, t); } }
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of another CPU")
@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("objdump")), reason="needs binutils")
def test_optional_instructions_are_in_kernels_that_check_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "strays.cc").write_text(STRAYS)
    library = tmp_path / "strays.o"
    flags = [
        "-O1",
        "-mavx512bf16",
        "-mavx512vbmi",
        "-c",
        str(tmp_path / "strays.cc"),
        "-o",
        str(library),
    ]
    subprocess.run(["g++", *flags], check=True)
    tool = [sys.executable, str(ROOT / "tools" / "isa_symbols.py"), "nm", str(library), "base"]
    process = subprocess.run([*tool, "objdump"], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    plain, reorder = process.stderr.splitlines()
    assert "sdx::plain(" in plain
    assert plain.endswith("has instructions of AVX512_BF16")
    assert "sdx::reorder(" in reorder
    assert reorder.endswith("has instructions of AVX512_VBMI")
