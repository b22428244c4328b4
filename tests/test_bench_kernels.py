"""The table of kernels: cases are measured, filtered and listed; every family has some."""

from __future__ import annotations

import argparse

import pytest

from bench import gemm, kernels, nbits, overhead, steps
from bench.steps import Case, floats, measure, one


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROUNDS", 1)
    monkeypatch.setattr(steps, "ROUND_S", 0.0)
    monkeypatch.setattr(steps, "bytes_beyond_caches", lambda: 1 << 16)


def _product(goal: float) -> Case:
    def make() -> steps.Made:
        return one("MatMul", {"x": floats(8, 64)}, lambda i: [floats(64, 48, seed=i)], copies=3)

    return Case("product", "8 x 64 x 48", gemm.KERNELS, make, goal)


def test_a_case_is_measured_beside_its_limits_and_onnxruntime() -> None:
    found = measure(_product(0.9), 1, rivals=True)
    assert found.seconds > 0
    assert found.share > 0
    assert found.rival is not None
    assert "FLOP/s" in found.rate or "GB/s" in found.rate


def test_a_case_without_its_step_says_what_ran() -> None:
    case = Case("product", "none", ("conv_f32",), _product(1).make, 1.0)
    with pytest.raises(ValueError, match=r"none has no step .*, but matmul"):
        measure(case, 1, rivals=False)


@pytest.mark.parametrize("markdown", [False, True])
def test_cases_below_their_goal_are_listed(
    capsys: pytest.CaptureFixture[str], markdown: bool
) -> None:
    given = argparse.Namespace(words=["64 x"], threads="1", rivals=False, markdown=markdown)
    steps.main([_product(0.0), _product(1e9)], given)
    said = capsys.readouterr().out
    assert "1 of 2 under their goals" in said
    assert said.count("8 x 64 x 48") == 3
    given.words = ["nothing"]
    assert steps.main([_product(0.0)], given) == []


def test_every_module_has_cases() -> None:
    found = kernels.cases()
    assert len({(c.family, c.name) for c in found}) == len(found)
    families = {c.family for c in found}
    assert {
        "product",
        "skinny product",
        "convolution",
        "1x1",
        "depthwise",
        "int8 product",
    } < families
    assert all(0 < c.goal <= 1 for c in found)


@pytest.mark.parametrize("layout", ["ms", "kn"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_nbits_in_either_layout(layout: str, bits: int) -> None:
    shape = nbits.Shape(2, 64, 48, bits=bits, layout=layout)
    found = measure(shape.case(), 1, rivals=False)
    assert found.seconds > 0


def test_overhead(capsys: pytest.CaptureFixture[str]) -> None:
    overhead.main(["--seconds", "0.01", "--callers", "1,2"])
    said = capsys.readouterr().out
    for word in ("Add of 16 floats", "of onnxruntime's", "2 callers"):
        assert word in said
