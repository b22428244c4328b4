"""IOBinding: outputs in the caller's memory, aliasing, threads, and invalid bindings."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx import OrtValue
from sardonyx.errors import InvalidArgument, ValueFault
from sardonyx.session.bound_memory import _disjoint
from sardonyx.session.io_binding import IOBinding
from tests.session.concurrently import run_concurrently

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3] x, float[n,3] y) => (float[n,3] z, float[n,3] w, float[m,3] v)
{ z = Add(x, y)  t = Mul(x, y)  w = Tanh(t)  v = Concat<axis=0>(x, y) }"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.full((2, 3), 2, np.float32)


@pytest.fixture
def session() -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(parser.parse_model(TEXT))


@pytest.fixture
def bound(session: sardonyx.InferenceSession) -> IOBinding:
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("y", Y)
    return binding


def test_outputs_are_written_where_they_are_bound(
    session: sardonyx.InferenceSession, bound: IOBinding
) -> None:
    z, w = np.zeros((2, 3), np.float32), OrtValue.ortvalue_from_shape_and_type([2, 3], 1)
    bound.bind_output("w")
    bound.bind_output("z", "cpu", 0, np.float32, z.shape, z.ctypes.data)
    bound.bind_ortvalue_output("w", w)
    bound.bind_output("v")
    for _ in range(3):
        z[:] = 0
        session.run_with_iobinding(bound)
        np.testing.assert_array_equal(z, X + Y)
        np.testing.assert_allclose(w.numpy(), np.tanh(X * Y), rtol=1e-6)
    outputs = bound.get_outputs()
    assert [o.data_ptr() for o in outputs[:2]] == [w.data_ptr(), z.ctypes.data]
    np.testing.assert_array_equal(outputs[2].numpy(), np.concatenate([X, Y]))
    copies = bound.copy_outputs_to_cpu()
    z[:] = -1
    np.testing.assert_array_equal(copies[1], X + Y)
    assert len(bound.get_outputs_as_ortvaluevector()) == 3
    bound.synchronize_inputs()
    bound.synchronize_outputs()


def test_the_run_itself_writes_there(
    session: sardonyx.InferenceSession, bound: IOBinding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied after the run."""
    monkeypatch.setattr("sardonyx.session.io_binding._copy", None)
    z = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    bound.bind_ortvalue_output("z", z)
    session.run_with_iobinding(bound)
    np.testing.assert_array_equal(z.numpy(), X + Y)
    options = sardonyx.RunOptions()  # the checked path
    z.update_inplace(np.zeros((2, 3), np.float32))
    session.run_with_iobinding(bound, options)
    np.testing.assert_array_equal(z.numpy(), X + Y)


def test_inputs_are_read_in_place(session: sardonyx.InferenceSession) -> None:
    x = X.copy()
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_ortvalue_input("y", OrtValue(Y))
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    first = binding.get_outputs()[0]
    x[:] = 5
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), x + Y)
    np.testing.assert_array_equal(first.numpy(), X + Y)  # what was handed out stays


def test_an_output_bound_over_an_input(
    session: sardonyx.InferenceSession, bound: IOBinding
) -> None:
    x = X.copy()
    bound.bind_cpu_input("x", x)
    bound.bind_ortvalue_output("z", OrtValue(x))
    bound.bind_output("w")
    session.run_with_iobinding(bound)
    np.testing.assert_array_equal(x, X + Y)
    np.testing.assert_allclose(bound.get_outputs()[1].numpy(), np.tanh(X * Y), rtol=1e-6)


def test_two_outputs_bound_to_one_buffer(
    session: sardonyx.InferenceSession, bound: IOBinding
) -> None:
    place = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    bound.bind_ortvalue_output("z", place)
    bound.bind_ortvalue_output("w", place)
    session.run_with_iobinding(bound)
    np.testing.assert_allclose(place.numpy(), np.tanh(X * Y), rtol=1e-6)


def test_an_output_bound_over_an_input_with_later_readers() -> None:
    @sardonyx.custom_op("test.binding", "Slow", inputs="x:float", outputs="y:float", shape="first")
    def slow(x: Any) -> Any:
        return x * 3

    text = """<ir_version: 8, opset_import: ["": 17, "test.binding": 1]>
    g (float[n,3] x, float[n,3] y) => (float[n,3] z, float[n,3] w, float[n,3] v)
    { z = Add(x, y)  w = test.binding.Slow(z)  t = Add(w, x) v = Mul(t, z) }"""
    try:
        session = sardonyx.InferenceSession(parser.parse_model(text))
        for same in (False, True):
            x = X.copy()
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_cpu_input("y", Y)
            binding.bind_ortvalue_output("z", OrtValue(x))
            binding.bind_ortvalue_output("w", OrtValue(x if same else X.copy()))
            binding.bind_output("v")
            session.run_with_iobinding(binding)
            z = X + Y
            np.testing.assert_array_equal(x, z * 3 if same else z)
            np.testing.assert_array_equal(binding.get_outputs()[2].numpy(), (z * 3 + X) * z)
    finally:
        sardonyx.unregister_custom_op("test.binding", "Slow")


def test_inputs_that_have_a_default() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[3] x, float[3] c) => (float[3] y) <float[3] c = {1,2,3}> { y = Add(x, c) }"""
    session = sardonyx.InferenceSession(parser.parse_model(text))
    binding = session.io_binding()
    binding.bind_cpu_input("x", X[0])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X[0] + [1, 2, 3])
    binding.bind_cpu_input("c", Y[0])
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X[0] + 2)


def test_types_under_8_bits_and_strings() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4] x) => (int4[4] q, string[4] s, float[4] y)
    { q = Cast<to=22>(x)  s = Cast<to=8>(x)  y = Identity(x) }"""
    session = sardonyx.InferenceSession(parser.parse_model(text))
    x, q = np.array([1, -8, 7, 0], np.float32), OrtValue.ortvalue_from_shape_and_type([4], 22)
    y = OrtValue.ortvalue_from_shape_and_type([4], 1)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("q", q)
    binding.bind_output("s")
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)
    assert bytes(q._tensor()) == b"\x81\x07"
    np.testing.assert_array_equal(q.numpy().astype(int), x)
    assert binding.get_outputs()[1].data_type() == "tensor(string)"
    np.testing.assert_array_equal(y.numpy(), x)


@pytest.mark.parametrize("offset", [0, 4, 8, 16])
def test_unaligned_buffers(session: sardonyx.InferenceSession, offset: int) -> None:
    memory = np.zeros(128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    place = memory[start : start + 24].view(np.float32).reshape(2, 3)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("y", Y)
    binding.bind_ortvalue_output("z", OrtValue(place))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(place, X + Y)


def test_other_shapes_in_the_next_run(session: sardonyx.InferenceSession, bound: IOBinding) -> None:
    bound.bind_output("z")
    session.run_with_iobinding(bound)
    bound.bind_cpu_input("x", X[:1])
    bound.bind_cpu_input("y", Y[:1])
    session.run_with_iobinding(bound)
    assert bound.get_outputs()[0].shape() == [1, 3]
    bound.bind_ortvalue_output("z", OrtValue.ortvalue_from_shape_and_type([2, 3], 1))
    with pytest.raises(RuntimeError, match=r"\[1, 3\] in this run, and is bound to .*\[2, 3\]"):
        session.run_with_iobinding(bound)


def _frozen() -> OrtValue:
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    return OrtValue(array)


PTR = X.ctypes.data
WRONG: list[tuple[Any, str]] = [
    (lambda b: b.bind_cpu_input("nope", X), "nope; the model has x, y"),
    (lambda b: b.bind_cpu_input("x", X.astype(float)), "tensor.double.*expected: .tensor.float"),
    (lambda b: b.bind_output("nope"), "Invalid output name: nope"),
    (lambda b: b.bind_output("z", "cuda", 99), "cuda:99"),
    (lambda b: b.bind_input("x", "cuda", 99, 1, [2, 3], PTR), "cuda:99"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2, 3], 0), "address of a tensor is 0"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2, 3], PTR + 1), "multiple of 4"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2, 3], 4096), "no memory at 0x1000"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2**40, 3], PTR), "no memory at"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2, -3], PTR), "0 or more"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2, 3], -8), "address of a tensor is -8"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2, 3], 2**64), "address of a tensor is"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2, 3], 2**64 - 8), "address of a tensor is"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [2**62, 4], PTR), "too many dims or elements"),
    (lambda b: b.bind_input("x", "cpu", 0, 1, [1] * 65, PTR), "too many dims or elements"),
    (lambda b: b.bind_input("x", "cpu", 0, 8, [2, 3], PTR), "strings have no address"),
    (lambda b: b.bind_input("x", "cpu", 0, 99, [2, 3], PTR), "not an element type"),
    (lambda b: b.bind_output("z", "cpu", 0, 1, [2, 3], 0), "address of a tensor is 0"),
    (lambda b: b.bind_output("z", "cpu", 0, 1, [2, 3], PTR + 2), "multiple of 4"),
    (lambda b: b.bind_output("z", "cpu", 0, 1, [2, 4], PTR), r"tensor of shape \[2, 4\]"),
    (lambda b: b.bind_output("z", "cpu", 0, 11, [2, 3], PTR), "Unexpected output"),
    (lambda b: b.bind_ortvalue_output("z", OrtValue(X.astype(float))), "Unexpected output"),
    (lambda b: b.bind_ortvalue_output("z", OrtValue(X.T.copy())), r"tensor of shape \[3, 2\]"),
    (lambda b: b.bind_ortvalue_output("z", OrtValue([X])), "Unexpected output"),
    (lambda b: b.bind_ortvalue_output("z", _frozen()), "read-only"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), WRONG, ids=[m for _, m in WRONG])
def test_what_cannot_be_bound(bound: IOBinding, call: Any, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        call(bound)


@pytest.mark.parametrize("given", [([2.0, 3], PTR), ([2, 3], float(PTR)), (5, PTR), ([2], "a")])
def test_sizes_and_addresses_are_whole_numbers(bound: IOBinding, given: Any) -> None:
    shape, pointer = given
    with pytest.raises(TypeError):
        bound.bind_input("x", "cpu", 0, 1, shape, pointer)


def test_binding_errors(session: sardonyx.InferenceSession, bound: IOBinding) -> None:
    with pytest.raises(RuntimeError, match="no output is bound"):
        session.run_with_iobinding(bound)
    bound.bind_output("z")
    bound.clear_binding_inputs()
    with pytest.raises(ValueError, match="'x', 'y'"):
        session.run_with_iobinding(bound)
    with pytest.raises(ValueError, match="element_type"):
        bound.bind_output("z", "cpu", 0, None, [2], 5)
    for wrong in (bound.bind_ortvalue_input, bound.bind_ortvalue_output):
        with pytest.raises(TypeError, match="must be an OrtValue"):
            wrong("x" if wrong == bound.bind_ortvalue_input else "z", X)
    bound.clear_binding_outputs()
    assert bound.get_outputs() == []
    other = sardonyx.InferenceSession(parser.parse_model(TEXT))
    with pytest.raises(sardonyx.SardonyxError, match="another session"):
        other.run_with_iobinding(bound)


def test_values_and_lists_of_values(session: sardonyx.InferenceSession) -> None:
    from sardonyx.capi.onnxruntime_pybind11_state import OrtValueVector

    feed = {"x": OrtValue(X), "y": OrtValue(Y)}
    (z,) = session.run_with_ort_values(["z"], feed)
    np.testing.assert_array_equal(z.numpy(), X + Y)
    assert len(session.run_with_ort_values(None, feed)) == 3
    np.testing.assert_array_equal(session.run(["z"], feed)[0], X + Y)
    with pytest.raises(TypeError, match="the input x must be an OrtValue"):
        session.run_with_ort_values(["z"], {"x": X, "y": Y})  # type: ignore[dict-item]
    feeds, fetches = OrtValueVector(list(feed.values())), OrtValueVector()
    device = sardonyx.OrtDevice.make("cpu", 0)
    session.run_with_ortvaluevector(None, ["x", "y"], feeds, ["w", "z"], fetches, [device] * 2)
    np.testing.assert_array_equal(fetches[1].numpy(), X + Y)


@pytest.mark.parametrize("name", ["y", "z"])
def test_an_unbound_alias_of_a_bound_output(name: str) -> None:
    made = sardonyx.InferenceSession(
        parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n] x) => (float[n] y, float[n] z) { y = Exp(x)  z = Identity(y) }""")
    )
    place = np.zeros(2, np.float32)
    binding = made.io_binding()
    binding.bind_cpu_input("x", np.zeros(2, np.float32))
    for output in ("y", "z"):
        binding.bind_output(output)
    binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(place))
    made.run_with_iobinding(binding)
    for output, value in zip(("y", "z"), binding.get_outputs(), strict=True):
        assert np.may_share_memory(value.numpy(), place) == (output == name)
        assert value.numpy().tolist() == [1, 1]


def test_overlapping_memory_is_detected() -> None:
    """By one walk over sorted addresses, which is compared with looking at each pair."""
    rng, buffer = np.random.default_rng(3), np.zeros(40, np.uint8)
    for _ in range(200):
        ends = rng.integers(0, 41, (rng.integers(1, 7), 2))
        values = [buffer[a:b] if a <= b else buffer[b:a:3] for a, b in ends]
        values[0] = None
        given = list(enumerate(values))
        wanted = [
            v is None
            or not any(np.may_share_memory(v, w) for j, w in given if w is not None and j != i)
            for i, v in given
        ]
        assert _disjoint(values) == wanted


def _filled(session: sardonyx.InferenceSession, **places: OrtValue | None) -> IOBinding:
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("y", Y)
    for name, place in places.items():
        if place is None:
            binding.bind_output(name)
        else:
            binding.bind_ortvalue_output(name, place)
    return binding


def test_bound_arrays_are_kept(session: sardonyx.InferenceSession) -> None:
    """Whoever bound them may forget them."""
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.full((2, 3), 4, np.float32))
    binding.bind_ortvalue_input("y", OrtValue(np.full((2, 3), 5, np.float32)))
    binding.bind_ortvalue_output("z", OrtValue(np.zeros((2, 3), np.float32)))
    gc.collect()
    others = [np.full((2, 3), -1, np.float32) for _ in range(100)]
    session.run_with_iobinding(binding)
    assert (binding.get_outputs()[0].numpy() == 9).all()
    assert all((o == -1).all() for o in others)
    array = np.full((2, 3), 4, np.float32)
    binding.bind_cpu_input("x", array)
    with pytest.raises(ValueError, match="resize"):
        array.resize((4, 3))


def test_an_input_with_gaps_is_copied_when_it_is_bound(session: sardonyx.InferenceSession) -> None:
    wide = np.ones((2, 6), np.float32)
    binding = _filled(session, z=None)
    binding.bind_cpu_input("x", wide[:, ::2])
    wide[:] = 7
    session.run_with_iobinding(binding)
    assert (binding.get_outputs()[0].numpy() == 3).all()


def test_rebinding_a_name(session: sardonyx.InferenceSession) -> None:
    first, second = (OrtValue.ortvalue_from_shape_and_type([2, 3], 1) for _ in range(2))
    binding = _filled(session, z=first)
    session.run_with_iobinding(binding)
    binding.bind_ortvalue_output("z", second)
    binding.bind_cpu_input("x", X + 1)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(first.numpy(), X + Y)
    np.testing.assert_array_equal(second.numpy(), X + Y + 1)
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].data_ptr() != second.data_ptr()
    assert len(binding.get_outputs()) == 1


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("options", [None, sardonyx.RunOptions()])
def test_partially_overlapping_buffers(
    session: sardonyx.InferenceSession, shift: int, options: Any
) -> None:
    """Outputs over inputs and each other: whole outputs, of which the last bound one is on top."""
    memory = np.arange(20, dtype=np.float32)
    x, z, w = (memory[i : i + 6].reshape(2, 3) for i in (2, 2 + shift, 9 + shift // 2))
    taken = x.copy()
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("y", Y)
    binding.bind_ortvalue_output("z", OrtValue(z))
    binding.bind_ortvalue_output("w", OrtValue(w))
    binding.bind_output("v")
    expected = memory.copy()
    expected[2 + shift : 8 + shift] = (taken + Y).reshape(-1)
    expected[9 + shift // 2 : 15 + shift // 2] = np.tanh(taken * Y).reshape(-1)
    session.run_with_iobinding(binding, options)
    np.testing.assert_allclose(memory, expected, rtol=1e-6)
    np.testing.assert_array_equal(binding.get_outputs()[2].numpy(), np.concatenate([taken, Y]))


def test_update_inplace_needs_the_same_type() -> None:
    value = OrtValue(np.zeros((2, 3), np.float32))
    wrong: list[tuple[Any, str]] = [
        (OrtValue(np.zeros((2, 3), np.int32)), "new value is int32"),
        (OrtValue(np.zeros((2, 4), np.float32)), "24 bytes, and the new value has 32"),
        (np.zeros((3, 3), np.float32), "24 bytes, and the new value has 36"),
        (np.zeros((2, 3), ">f4"), "the new value is >f4"),
        (OrtValue([X]), "not a tensor"),
        (OrtValue(None), "not a tensor"),
    ]
    for data, match in wrong:
        with pytest.raises(RuntimeError, match=match):
            value.update_inplace(data)
    texts = OrtValue(np.array(["a", "b"], object))
    for data in (np.zeros(2), OrtValue(np.zeros(2)), OrtValue(np.array(["c", "d"], object))):
        with pytest.raises(RuntimeError, match="strings"):
            texts.update_inplace(data)
    for data in (np.array(["c"], object), "text", None, 5):
        with pytest.raises(TypeError):
            value.update_inplace(data)
    whole = np.arange(7, dtype=np.float32)
    shifted = OrtValue(whole[1:])
    shifted.update_inplace(whole[:-1])  # which overlap
    assert whole.tolist() == [0, 0, 1, 2, 3, 4, 5]
    narrow = OrtValue(np.array([1, 2, 3]).astype(ml_dtypes.int4))
    narrow.update_inplace(np.array([-8, 7, 0]).astype(ml_dtypes.int4))
    assert narrow.numpy().astype(int).tolist() == [-8, 7, 0]


def test_two_threads_run_one_binding(session: sardonyx.InferenceSession) -> None:
    places = {n: OrtValue.ortvalue_from_shape_and_type([2, 3], 1) for n in ("z", "w")}
    binding = _filled(session, **places, v=None)

    def run(_: int) -> None:
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.get_outputs()[2].numpy(), np.concatenate([X, Y]))

    run_concurrently(run, run, run, times=200)
    np.testing.assert_array_equal(places["z"].numpy(), X + Y)
    np.testing.assert_allclose(places["w"].numpy(), np.tanh(X * Y), rtol=1e-6)


def test_rebinding_during_runs(session: sardonyx.InferenceSession) -> None:
    """A run has all of what was bound when it began; a later one never goes back to it."""
    binding = _filled(session, z=None, v=None)

    def run(_: int) -> None:
        # Nothing is bound just then, or x is already rebound and y is not.
        with contextlib.suppress(ValueError, ValueFault, InvalidArgument):
            session.run_with_iobinding(binding)
            for value in binding.get_outputs():
                value.numpy().sum()

    def rebind(i: int) -> None:
        n = i % 5 + 1
        binding.bind_cpu_input("x", np.full((n, 3), n, np.float32))
        binding.bind_cpu_input("y", np.full((n, 3), n, np.float32))
        place = OrtValue(np.zeros((n, 3), np.float32))
        binding.bind_ortvalue_output("z", place)
        with contextlib.suppress(ValueError, ValueFault, InvalidArgument):
            session.run_with_iobinding(binding)

    def clear(_: int) -> None:
        binding.clear_binding_outputs()
        binding.clear_binding_inputs()
        gc.collect(0)
        for name, value in (("x", X), ("y", Y)):
            binding.bind_cpu_input(name, value)
        for name in ("z", "v"):
            binding.bind_output(name)

    run_concurrently(run, rebind, clear, run, times=200)
    place = OrtValue(np.zeros((2, 3), np.float32))
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("y", Y)
    binding.bind_ortvalue_output("z", place)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(place.numpy(), X + Y)
