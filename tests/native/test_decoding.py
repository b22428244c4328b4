"""Decoding with a KV cache: a prompt, then token by token, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx

Array = np.ndarray[Any, np.dtype[Any]]
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
LENGTH = 64  # places that there are angles for


def model(heads: int, shared: int, head: int, attrs: dict[str, Any]) -> bytes:
    """One GroupQueryAttention whose lengths come from a mask, as exporters write it."""
    nodes = [
        helper.make_node("ReduceSum", ["mask", "axis"], ["sums"], keepdims=0),
        helper.make_node("Sub", ["sums", "axis"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"], start=1, end=2),
        helper.make_node("Cast", ["shape"], ["total"], to=TensorProto.INT32),
    ]
    names = ["qkv", "", "", "past_key", "past_value", "seqlens", "total"]
    angle = np.random.default_rng(1).standard_normal((LENGTH, head // 2)).astype(np.float32)
    constants = [numpy_helper.from_array(np.array([1]), "axis")]
    if attrs.get("do_rotary"):
        names += ["cos", "sin"]
        constants.append(numpy_helper.from_array(np.cos(angle), "cos"))
        constants.append(numpy_helper.from_array(np.sin(angle), "sin"))
    outputs = ["y", "present_key", "present_value"]
    settings = {"num_heads": heads, "kv_num_heads": shared, **attrs}
    op, domain = "GroupQueryAttention", "com.microsoft"
    nodes.append(helper.make_node(op, names, outputs, domain=domain, **settings))
    tensor = helper.make_tensor_value_info
    cache = ["batch", shared, "past", head]
    inputs = [
        tensor("qkv", FLOAT, ["batch", "rows", (heads + 2 * shared) * head]),
        tensor("past_key", FLOAT, cache),
        tensor("past_value", FLOAT, cache),
        tensor("mask", INT, ["batch", "total"]),
    ]
    graph = helper.make_graph(
        nodes, "step", inputs, [tensor(n, FLOAT, None) for n in outputs], constants
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def mask_of(lengths: list[int]) -> Array:
    return (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"do_rotary": 1},
    {"do_rotary": 1, "rotary_interleaved": 1, "scale": 0.3},
    {"do_rotary": 1, "local_window_size": 4},
    {"softcap": 0.8, "local_window_size": 9},
    {"smooth_softmax": 1, "softcap": 2.0},
)
SIZES = ((4, 2, 16), (6, 6, 16), (8, 1, 32), (3, 1, 48))


@pytest.mark.parametrize("seed", range(len(SETTINGS) * len(SIZES)))
def test_a_growing_cache(seed: int) -> None:
    check_steps(seed, capacity=0)


@pytest.mark.parametrize("seed", range(0, len(SETTINGS) * len(SIZES), 5))
def test_a_cache_with_reserved_rows(seed: int) -> None:
    """Longer than what has been seen: inference took the contrary for granted."""
    check_steps(seed, capacity=48)


def check_steps(seed: int, capacity: int) -> None:
    """A prompt and some tokens, each of the batch with a length of its own."""
    rng = np.random.default_rng(seed)
    heads, shared, head = SIZES[seed // len(SETTINGS)]
    made = model(heads, shared, head, SETTINGS[seed % len(SETTINGS)])
    sessions = [
        runtime.InferenceSession(made, providers=["CPUExecutionProvider"])
        for runtime in (sardonyx, onnxruntime)
    ]
    lengths = [int(n) for n in rng.integers(1, 30, int(rng.integers(1, 4)))]
    batch, rows = len(lengths), max(lengths)
    caches = [[np.zeros((batch, shared, capacity, head), np.float32)] * 2 for _ in sessions]
    for step in range(5):
        shape = (batch, rows, (heads + 2 * shared) * head)
        feeds = {"qkv": rng.standard_normal(shape).astype(np.float32), "mask": mask_of(lengths)}
        results = []
        for i, session in enumerate(sessions):
            past = dict(zip(("past_key", "past_value"), caches[i], strict=True))
            y, *caches[i] = session.run(None, {**feeds, **past})
            results.append([y, *caches[i]])
        is_given = (
            np.arange(rows) < np.array(lengths)[:, None] if not step else np.ones((batch, 1), bool)
        )
        ours, theirs = (np.where(is_given[..., None], r[0], 0) for r in results)
        assert np.isfinite(results[0][0]).all(), "rows after the end are nothing special"
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=5e-6)
        for mine, other in zip(results[0][1:], results[1][1:], strict=True):
            assert mine.shape == other.shape
            for b, length in enumerate(lengths):
                np.testing.assert_allclose(mine[b, :, :length], other[b, :, :length], atol=2e-6)
        rows, lengths = 1, [n + 1 for n in lengths]
