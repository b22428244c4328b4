"""Decoder models from prompt to tokens: all variants of one model agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx as ort
from sardonyx import OrtValue
from sardonyx import _native as native
from tests.decoder import Decoder, generate

PROMPT = [[3, 1, 4, 1, 5, 9, 2, 6]]
LEVEL = "session.qdq_matmulnbits_accuracy_level"


def session(decoder: Decoder, **entries: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(decoder.model().SerializeToString(), options)


def distance(left: list[Any], right: list[Any]) -> float:
    """The largest difference, as a part of the largest number."""
    return max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("form", ["float32", "qoperator", "qdq"])
def test_as_onnxruntime(form: str) -> None:
    model = Decoder(form).model().SerializeToString()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(LEVEL, "0")
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ours = ort.InferenceSession(model)
    assert distance(generate(ours, PROMPT, 12), generate(theirs, PROMPT, 12)) < 1e-5


def test_quantized_forms_agree() -> None:
    """Exact products: the forms differ by what sums of float32 differ by."""
    exact = generate(session(Decoder("float32")), PROMPT, 8)
    stored = generate(session(Decoder("qoperator")), PROMPT, 8)
    dequantized = generate(session(Decoder("qdq")), PROMPT, 8)
    assert distance(stored, exact) < 1e-5
    assert distance(dequantized, stored) < 1e-5


@pytest.mark.parametrize("length", [1, 2, 5, 12, 13, 40])
def test_quantized_forms_agree_on_8_bit_activations(length: int) -> None:
    """To the last bit: one that differs would be rounded to another byte in the next layer."""
    prompt = [list(range(length))]
    stored = generate(session(Decoder("qoperator", level=4)), prompt, 4)
    dequantized = generate(session(Decoder("qdq"), **{LEVEL: "4"}), prompt, 4)
    exact = generate(session(Decoder("qoperator")), prompt, 0)
    for a, b in zip(dequantized, stored, strict=True):
        np.testing.assert_array_equal(a, b)
    assert 0 < distance(stored[:1], exact) < 0.03


@pytest.mark.parametrize("form", ["float32", "qoperator", "qdq"])
def test_nothing_runs_in_python(form: str) -> None:
    assert session(Decoder(form))._compiled.program.python_steps == 0


def test_a_cache_is_what_a_longer_prompt_gives() -> None:
    s = session(Decoder("qoperator"))
    steps = generate(s, PROMPT, 5)
    tokens = [logits[0, -1].argmax() for logits in steps[:-1]]
    (whole,) = generate(s, [[*PROMPT[0], *tokens]], 0)
    assert distance([whole[:, -1:]], steps[-1:]) < 1e-5


def test_caches_grow_in_place() -> None:
    s = session(Decoder("qdq"))
    caches: dict[str, Any] = {}
    for i in s.get_inputs():
        if i.name.startswith("past"):
            caches[i.name] = np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
    feeds = {"input_ids": np.array(PROMPT), "attention_mask": np.ones((1, 8), np.int64)}
    _, *first = s.run(None, {**feeds, **caches})
    assert all(native.has_capacity(a) for a in first)
    feeds = {"input_ids": np.array([[5]]), "attention_mask": np.ones((1, 9), np.int64)}
    _, *second = s.run(None, {**feeds, **dict(zip(caches, first, strict=True))})
    for a, b in zip(first, second, strict=True):
        assert a.__array_interface__["data"] == b.__array_interface__["data"]
        np.testing.assert_array_equal(a, b[:, :, :8])


def test_batches(tmp_path: Path) -> None:
    s = ort.InferenceSession(Decoder("qoperator").save(tmp_path / "m.onnx"))
    both = generate(s, [[1, 2, 3, 4], [9, 8, 7, 6]], 4)
    alone = generate(s, [[9, 8, 7, 6]], 4)
    assert distance([b[1:] for b in both], alone) < 1e-5


def preallocated(s: Any, n_rows: int) -> dict[str, OrtValue]:
    """Caches of full length, filled with sevens."""
    shapes = {i.name: (1, i.shape[1], n_rows, i.shape[3]) for i in s.get_inputs()[2:]}
    return {
        n: OrtValue.ortvalue_from_numpy(np.full(shape, 7, np.float32))
        for n, shape in shapes.items()
    }


def run_shared(s: Any, tokens: Any, total: int, caches: dict[str, OrtValue], options: Any) -> Any:
    """The logits of tokens, with each cache bound as past and as present."""
    binding = s.io_binding()
    binding.bind_output("logits")
    binding.bind_cpu_input("input_ids", tokens)
    binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
    for name, cache in caches.items():
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
    s.run_with_iobinding(binding, options)
    return binding.get_outputs()[0].numpy()


@pytest.mark.parametrize("options", [None, ort.RunOptions()], ids=["fast", "checked"])
@pytest.mark.parametrize("dim", ["past", 16])
def test_a_preallocated_cache_is_extended_where_it_is(dim: Any, options: Any) -> None:
    """The run writes the new rows and reads no row after them."""
    model = Decoder("qdq").model()
    for value in (*model.graph.input[2:], *model.graph.output[1:]):
        if isinstance(dim, int):
            value.type.tensor_type.shape.dim[2].dim_value = dim
    s = ort.InferenceSession(model.SerializeToString())
    wanted = generate(session(Decoder("qdq")), PROMPT, 4)
    caches = preallocated(s, 16)
    tokens = np.array(PROMPT)
    for step, logits in enumerate(wanted):
        found = run_shared(s, tokens, len(PROMPT[0]) + step, caches, options)
        np.testing.assert_array_equal(found, logits)
        tokens = logits[:, -1:].argmax(-1)
    for cache in caches.values():
        rows = cache.numpy()[0, 0]
        assert not (rows[:12] == 7).any()
        assert (rows[12:] == 7).all()


def test_a_cache_that_others_read_is_copied() -> None:
    """What a run reads is the past as it was."""
    model = Decoder("qdq", layers=1).model()
    past = model.graph.input[2]
    model.graph.node.append(onnx.helper.make_node("Mul", [past.name, past.name], ["squares"]))
    info = onnx.helper.make_empty_tensor_value_info("squares")
    model.graph.output.append(info)
    s = ort.InferenceSession(model.SerializeToString())
    caches = preallocated(s, 16)
    (wanted,) = generate(session(Decoder("qdq", layers=1)), PROMPT, 0)
    binding = s.io_binding()
    for name, cache in caches.items():
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
    binding.bind_cpu_input("input_ids", np.array(PROMPT))
    binding.bind_cpu_input("attention_mask", np.ones((1, 8), np.int64))
    binding.bind_output("logits")
    binding.bind_output("squares")
    s.run_with_iobinding(binding)
    *_, logits, squares = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(logits, wanted)
    assert (squares == 49).all()
    assert not (caches[past.name].numpy()[0, 0, :8] == 7).any()


def test_one_cache_for_two_inputs_is_copied() -> None:
    s = session(Decoder("qdq", layers=1))
    one = preallocated(s, 16)
    twice = dict.fromkeys(one, next(iter(one.values())))
    (wanted,) = generate(s, PROMPT, 0)
    np.testing.assert_array_equal(run_shared(s, np.array(PROMPT), 8, twice, None), wanted)
