"""Weight gradients of convolutions, found in the spelling of gradient graphs."""

from __future__ import annotations

import pytest

from sardonyx.passes.conv_gradient import conv_weight_gradient
from tests.graphs import rewrites, unchanged

INPUTS = "in x: f32[4,3,9,8]\nin d: f32[4,5,5,5]\n"
HEAD = f"""{INPUTS}a = Transpose(x, perm=[1, 0, 2, 3])
k = Transpose(d, perm=[1, 0, 2, 3])
"""
SWAP = "perm=[1, 0, 2, 3])\nout y"


def test_by_weights() -> None:
    rewrites(
        f"{HEAD}c = Conv(a, k)\ny = Transpose(c, {SWAP}",
        conv_weight_gradient,
        f"{INPUTS}y = sardonyx.ConvWeightGradient(x, d, kernel_shape=[5, 4])\nout y",
    )


def test_strides_become_dilations_and_extra_taps_are_cut() -> None:
    """9 x 8 pixels, 3 x 3 taps, stride 2: 5 x 5 outputs, and the Conv has a tap more."""
    pads = "pads=[1, 1, 2, 2]"
    rewrites(
        f"{HEAD}c = Conv(a, k, dilations=[2, 2], {pads})\n"
        f"s = Slice(c, [0, 0], [3, 3], [2, 3])\ny = Transpose(s, {SWAP}",
        conv_weight_gradient,
        f"{INPUTS}y = sardonyx.ConvWeightGradient(x, d, kernel_shape=[3, 3], {pads}, "
        "strides=[2, 2])\nout y",
    )


KEPT = {
    "result not swapped": "c = Conv(a, k)\ny = Transpose(c, perm=[0, 1, 3, 2])\nout y",
    "a bias": f"in b: f32[5]\nc = Conv(a, k, b)\ny = Transpose(c, {SWAP}",
    "taps cut from the front": (
        f"c = Conv(a, k)\ns = Slice(c, [1, 0], [5, 5], [2, 3])\ny = Transpose(s, {SWAP}"
    ),
    # A window of fewer taps has more outputs than the gradient.
    "taps are missing": (
        f"c = Conv(a, k)\ns = Slice(c, [0, 0], [3, 4], [2, 3])\ny = Transpose(s, {SWAP}"
    ),
    "pads that follow from sizes": (
        f'c = Conv(a, k, auto_pad="SAME_UPPER")\ny = Transpose(c, {SWAP}'
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_convolutions_stay(name: str) -> None:
    unchanged(HEAD + KEPT[name], conv_weight_gradient)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("k = Transpose(d, perm=[1, 0, 2, 3])", "k = Reshape(d, [5, 4, 5, 5])"),
        ("f32", "f64"),
        ("x: f32[4,3,9,8]", "x: f32[4,1,9,8]"),
        ("x: f32[4,3,9,8]", "x: f32[4,3,H,8]"),
    ],
    ids=["not swapped", "float64", "one channel", "open sizes"],
)
def test_other_operands_stay(before: str, after: str) -> None:
    text = f"{HEAD}c = Conv(a, k)\ny = Transpose(c, {SWAP}"
    unchanged(text.replace(before, after), conv_weight_gradient)
