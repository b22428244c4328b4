"""The kernels that measure the roofline: that they do what they count."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.cli.roofline import TYPES, BandwidthPeak, ComputePeak, Roofline, bytes_beyond_caches
from tests.kernels import SPLITS, tensor


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize(
    ("kernel", "x", "products"),
    [
        ("fma_limit", np.array([0.5, 0.5], np.float32), 1),
        ("fma_limit_64", np.array([0.5, 0.5], np.float64), 1),
        ("bf16_limit", np.array([0x3F003F00] * 2, np.uint32).view(np.float32), 2),
        ("dot_limit", np.array([0x01010101, 1], np.int32), 4),
    ],
)
def test_rounds_are_counted(isa: str, kernel: str, x: np.ndarray, products: int) -> None:
    made = []
    for splits in SPLITS:
        y = np.full((5, 2), -1, np.float32)
        assert native.call(kernel, [tensor(x)], [tensor(y)], [], [], splits, isa) == ""
        made.append(y)
    assert all(np.array_equal(made[0], y) for y in made)
    lanes = made[0][:, 0] / (12 * 4096 * products)
    assert np.array_equal(lanes * x.itemsize, [lanes[0] * x.itemsize] * 5)
    assert lanes[0] * x.itemsize in (16, 32, 64)
    # In each lane of 12 chains halves tend to 1; bytes begin with 1 to 12 and grow by 1 per step.
    # Pairs of bf16 begin with the same numbers of x[1], and grow by twice a quarter.
    grown = 12 * 4096 * (0.5 if products == 2 else 1) + sum(range(1, 13)) * float(x[1])
    wanted = 12 if products == 1 else grown
    assert made[0][:, 1] == pytest.approx([wanted * lanes[0]] * 5, rel=1e-5)


@pytest.mark.parametrize("isa", native.isas)
@pytest.mark.parametrize(("n_read", "n_written"), [(1 << 16, 0), (1 << 14, 1 << 15), (0, 1 << 12)])
def test_a_stream_touches_every_byte(isa: str, n_read: int, n_written: int) -> None:
    x = np.ones(n_read // 4, np.int32).view(np.uint8)
    for splits in (1, 3):
        y, sums = np.zeros(n_written, np.uint8), np.zeros(4, np.int32)
        given = [tensor(x)], [tensor(y), tensor(sums)], [2], [], splits, isa
        assert native.call("stream_limit", *given) == ""
        assert sums.sum() == n_read // 4
        assert np.array_equal(y.view(np.int32), np.ones(n_written // 4, np.int32))


def test_best_rates_are_kept() -> None:
    for peak in (ComputePeak("float32", 1), BandwidthPeak(1 << 16, 1 << 16, 2)):
        first = peak.measure(0.0)
        assert 0 < first <= peak.measure(0.0) == peak.rate


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        (["32K", "1024K", "65536K"], 512 << 20),
        (["32K"], 256 << 20),
        (["9999999K"], 1 << 30),
        (["many"], 256 << 20),
        ([], 256 << 20),
    ],
)
def test_a_stream_is_larger_than_caches(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, sizes: list[str], wanted: int
) -> None:
    for i, size in enumerate(sizes):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr("sardonyx.cli.roofline._CACHE_FILES", str(tmp_path))
    assert bytes_beyond_caches() == wanted


def test_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.cli.roofline.bytes_beyond_caches", lambda: 1 << 20)
    roofline = Roofline(1)
    roofline.measure()
    assert tuple(roofline.operations_per_s) == TYPES
    assert min(*roofline.operations_per_s.values(), roofline.bytes_read_per_s) > 1e6
