"""Models that look like what a fusion matches and mean something else: results stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.transformers.test_attention import (
    COMPUTED,
    HEADS,
    LINEAR,
    OUT,
    QKV,
    RNG,
    ROTARY,
    Arrays,
    check,
    normal,
    parsed,
)

ROWS = 4
CONSTANTS: Arrays = {
    **HEADS, **LINEAR, "root": np.float32(2), "one": np.float32(1), "zero": np.float32(0),
    "low": np.float32(-10000), "infinite": np.float32(-np.inf), "axes": np.array([1, 2]),
    "first": np.array([0]), "index": np.array(1), "dim2": np.array([2]), "dim3": np.array([3]),
}  # fmt: skip
START = QKV + "s = MatMul(q, k) scaled = Div(s, root) "
PADDING = """u = Unsqueeze(mask, axes) f = Cast<to=1>(u) gone = Sub(one, f) cost = Mul(gone, low)
    masked = Add(scaled, cost) p = Softmax<axis=-1>(masked) """
# A row of the second sample sees no key: torch's exporter writes zeros, not NaN.
SEEN = RNG.random((3, 1, ROWS, ROWS)) < 0.6
SEEN[..., 0] = True
SOME_ROWS_EMPTY = SEEN.copy()
SOME_ROWS_EMPTY[1, 0, 2] = False
MASKED = "float[B,S,8] x, bool[B,1,S,S] seen"
CAST = "oh = MatMul(ph, vh) t = Transpose<perm=[0, 2, 1, 3]>(oh) y = Reshape(t, whole)"

# By name: inputs, the type of results, what follows the scores, the mask, the type of model, and
# the attention that there should be.
MASKS: dict[str, tuple[str, str, str, Arrays, str, int]] = {
    "one padding mask for all samples": (
        "float[B,S,8] x, int64[1,S] mask", "float", PADDING + "o = MatMul(p, v)" + OUT,
        {"mask": np.array([[1, 1, 0, 1]])}, "bert", 1,
    ),
    "rows without keys": (
        MASKED, "float", "cost = Where(seen, zero, infinite) masked = Add(scaled, cost) "
        "w = Softmax<axis=-1>(masked) n = IsNaN(w) p = Where(n, zero, w) o = MatMul(p, v)" + OUT,
        {"seen": SOME_ROWS_EMPTY}, "bert", 1,
    ),
    "zeroed and cast": (
        "float[B,S,8] x, bool[B,1,S,S] hidden", "float16", "masked = Where(hidden, low, scaled) "
        "w = Softmax<axis=-1>(masked) p = Where(hidden, zero, w) ph = Cast<to=10>(p) "
        "vh = Cast<to=10>(v) " + CAST,
        {"hidden": ~SOME_ROWS_EMPTY}, "bert", 1,
    ),
    "the other keys are zeroed": (
        MASKED, "float", "masked = Where(seen, scaled, low) w = Softmax<axis=-1>(masked) "
        "p = Where(seen, zero, w) o = MatMul(p, v)" + OUT,
        {"seen": SEEN}, "bert", 0,
    ),
    "padding in an encoder of bart": (
        "float[B,S,8] x, int64[B,S] mask", "float", PADDING + "o = MatMul(p, v)" + OUT,
        {"mask": np.array([[1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0]])}, "bart", 1,
    ),
    "expanded padding in an encoder of bart": (
        "float[B,S,8] x, bool[B,1,1,S] seen", "float", "shape = Shape(scaled) "
        "cost = Where(seen, zero, low) costs = Expand(cost, shape) masked = Add(scaled, costs) "
        "p = Softmax<axis=-1>(masked) o = MatMul(p, v)" + OUT,
        {"seen": SEEN[:, :, :1]}, "bart", 1,
    ),
    "a mask of each sample in a decoder of bart": (
        MASKED, "float", "cost = Where(seen, zero, low) masked = Add(scaled, cost) "
        "p = Softmax<axis=-1>(masked) o = MatMul(p, v)" + OUT,
        {"seen": SEEN & np.tri(ROWS, dtype=bool)}, "bart", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    inputs, dtype, text, fed, kind, fused = MASKS[name]
    model = parsed(f"g ({inputs}) => ({dtype}[B,S,8] y) {{{START}{text}}}", CONSTANTS)
    counts = check(
        model, {"x": normal(3, ROWS, 8), **fed}, kind, atol=4e-3 if "cast" in name else 2e-5
    )
    assert counts.get("Attention", 0) == fused


@pytest.mark.parametrize("is_causal", [True, False])
def test_triangular_masks_of_each_head(is_causal: bool) -> None:
    """A table that is causal for the first of two heads only is no triangle."""
    table = np.tile(np.tri(8, dtype=bool), (1, 2, 1, 1))
    table[0, 1] |= not is_causal
    model = parsed(
        "g (float[B,S,8] x) => (float[B,S,8] y) {" + START + """
        shape = Shape(x) rows = Gather(shape, index) n = Unsqueeze(rows, first)
        c0 = Slice(table, first, n, dim2) c = Slice(c0, first, n, dim3)
        masked = Where(c, scaled, low) p = Softmax<axis=-1>(masked) o = MatMul(p, v)""" + OUT + "}",
        {**CONSTANTS, "table": table[:, :1] if is_causal else table},
    )  # fmt: skip
    counts = check(model, {"x": normal(3, ROWS, 8)}, "gpt2")
    assert counts.get("Attention", 0) == is_causal


ROTATION: Arrays = {
    "heads": HEADS["heads"], "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
    "last": np.array([-1]), "end": np.array([1 << 40]),
}  # fmt: skip


POSITIONS = {
    "scaled positions": ("Identity(f1)", 1),
    "rounded positions": ("Cast<to=1>(f2)", 0),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_rotary_positions(name: str) -> None:
    scaled, fused = POSITIONS[name]
    start = "f0 = Cast<to=1>(iu) f1 = Mul(f0, quarter) f2 = Cast<to=7>(f1)"
    angles = COMPUTED.replace("f = Cast<to=1>(iu)", f"{start} f = {scaled}")
    model = parsed(ROTARY.replace("ANGLES", angles), {
        **ROTATION, "factor": np.float32(1.5), "quarter": np.float32(0.25),
        "frequency": np.array([1, 0.01], np.float32).reshape(1, 2, 1),
    })  # fmt: skip
    feed = {"x": normal(2, 3, 8), "ids": np.array([[0, 1, 2], [7, 30, 31]])}
    assert check(model, feed, "qwen3").get("RotaryEmbedding", 0) == fused


def test_rotary_tables_with_a_dim_of_one() -> None:
    """Tables [positions, 1, head], of which the dim is squeezed after the front is sliced."""
    table = np.arange(40, dtype=np.float32)[:, None, None] * np.tile(
        np.array([1, 0.01], np.float32), 2
    )
    angles = """xs = Shape(x) rows = Slice(xs, one, two, zero)
        cf = Slice(cos_table, zero, rows, zero) ct = Squeeze(cf, one) c = Gather(ct, ids)
        sf = Slice(sin_table, zero, rows, zero) st = Squeeze(sf, one) s = Gather(st, ids)"""
    constants = {**ROTATION, "cos_table": np.cos(table), "sin_table": np.sin(table)}
    feed = {"x": normal(2, 3, 8), "ids": np.array([[0, 1, 2], [2, 0, 1]])}
    counts = check(parsed(ROTARY.replace("ANGLES", angles), constants), feed, "qwen3")
    assert counts["RotaryEmbedding"] == 1


@pytest.mark.parametrize("count", [1, ROWS])
def test_one_position_for_all_rows(count: int) -> None:
    rows = 1 if count == 1 else "S"
    model = parsed(
        f"""g (int64[B,S] words, int64[B,S] types, int64[1,{rows}] positions)
        => (float[B,S,8] y) {{
        a = Gather(word, words) b = Gather(type, types) c = Gather(position, positions)
        ab = Add(a, b) abc = Add(ab, c) y = LayerNormalization<axis=-1>(abc, scale, shift)
        }}""",
        {"word": normal(20, 8), "type": normal(2, 8), "position": normal(16, 8),
         "scale": normal(8), "shift": normal(8)},
    )  # fmt: skip
    feed = {
        "words": RNG.integers(0, 20, (2, ROWS)), "types": RNG.integers(0, 2, (2, ROWS)),
        "positions": RNG.integers(0, 16, (1, count)),
    }  # fmt: skip
    assert check(model, feed).get("EmbedLayerNormalization", 0) == (count == ROWS)
