"""Transposed convolutions in groups of few channels become convolutions with equal results."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.load.graph_text import parse
from sardonyx.passes import PassOptions, lower
from tests.graphs import random_feeds, run_graph

REWRITTEN = {
    "depthwise": ("f32[2,6,5,7]", "f32[6,1,3,3]", "group=6, pads=[1,1,1,1]"),
    "dilated": ("f32[1,4,9]", "f32[4,2,3]", "group=4, dilations=[2], pads=[1,2]"),
    "upsampling by two": (
        "f32[2,6,5,7]", "f32[6,1,4,4]", "group=6, strides=[2,2], pads=[1,1,1,1]",
    ),
    "an odd output": ("f32[1,6,5,7]", "f32[6,1,3,3]", "group=6, strides=[2,2], pads=[1,1,1,1]"),
    "output padding": (
        "f32[1,6,5,7]", "f32[6,2,3,3]",
        "group=2, strides=[2,2], pads=[1,1,1,1], output_padding=[1,0]",
    ),
    "phases without taps": ("f32[1,6,5,7]", "f32[6,1,1,2]", "group=6, strides=[3,3]"),
    "open sizes": ("f32[N,6,H,W]", "f32[6,1,4,4]", "group=6, strides=[2,2], pads=[1,1,1,1]"),
    "a volume": ("f32[1,4,3,4,5]", "f32[4,1,2,3,2]", "group=4"),
}  # fmt: skip
KEPT = {
    "one group": ("f32[1,6,5,7]", "f32[6,2,3,3]", "group=1"),
    "many channels": ("f32[1,64,5,7]", "f32[64,32,3,3]", "group=2"),
    "strides and dilations": (
        "f32[1,6,5,7]", "f32[6,1,3,3]", "group=6, strides=[2,2], dilations=[2,2]",
    ),
    "unequal strides": ("f32[1,6,5,7]", "f32[6,1,3,3]", "group=6, strides=[1,2]"),
    "pads that crop inputs": ("f32[1,6,5,7]", "f32[6,1,1,1]", "group=6, pads=[1,1,1,1]"),
    "an output's size": ("f32[1,6,5,7]", "f32[6,1,3,3]", "group=6, output_shape=[6,8]"),
}  # fmt: skip


def _ops(image: str, weights: str, attrs: str) -> set[str]:
    """The ops after lowering, which computes the same."""
    text = f"""
        in x: {image}
        const w: {weights}
        const b: f32[{_maps(weights, attrs)}]
        y = ConvTranspose(x, w, b, {attrs})
        out y
    """
    before, after = parse(text), parse(text)
    lower(after, PassOptions())
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)
    return {n.op.name for n in after.nodes}


def _maps(weights: str, attrs: str) -> int:
    group = int(attrs.split("group=")[1].split(",")[0])
    return int(weights.split(",")[1]) * group


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    assert "ConvTranspose" not in _ops(*REWRITTEN[name])


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    assert "ConvTranspose" in _ops(*KEPT[name])
