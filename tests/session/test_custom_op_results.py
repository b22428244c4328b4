"""Results of custom ops: ownership, types, shapes, exceptions, re-entrant sessions."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx import custom_op, native_op
from sardonyx.custom_ops.native_op import C_FUNCTION
from sardonyx.errors import Fail, InvalidArgument, InvalidGraph, RuntimeException, SardonyxError
from tests.session.acme import session

pytestmark = pytest.mark.usefixtures("unregistered_ops")
ONE = "g (float[2] x) => (float[2] y) { [the_node] y = acme.Op(x) }"
BETWEEN = "g (float[n] x) => (float[n] y) { a = Neg(x) b = acme.Op(a) y = Exp(b) }"
X = np.array([1, 2], np.float32)


def declare(function: Any, outputs: str = "y:float", shape: Any = "first") -> None:
    custom_op("acme", "Op", inputs="x:float", outputs=outputs, shape=shape)(function)


class Odd:
    """Something that numpy asks for an array, and that gives none."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise KeyError("no array here")


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (lambda x: None, "returned object, and declares float"),
    "a list": (lambda x: [1.0, 2.0], "returned float64"),
    "a ragged list": (lambda x: [[1.0], [1.0, 2.0]], "inhomogeneous"),
    "a dict": (lambda x: {"y": x}, "returned object"),
    "objects": (lambda x: x.astype(object), "returned object"),
    "a record": (lambda x: np.zeros(2, "f4,f4"), "returned .*f4"),
    "other byte order": (lambda x: x.astype(">f4"), "returned >f4"),
    "no outputs": (lambda x: (), "returned 0 values, and has 1 outputs"),
    "more outputs": (lambda x: (x, x), "returned 2 values"),
    "a generator": (lambda x: (v for v in x), "returned object"),
    "a scalar": (lambda x: np.float32(1), r"returned the shape \[\], and its shape rule says"),
    "a longer one": (lambda x: np.resize(x, 3), r"returned the shape \[3\]"),
    "another rank": (lambda x: x[None], r"returned the shape \[1, 2\]"),
    "an empty one": (lambda x: x[:0], r"returned the shape \[0\]"),
    "no array": (lambda x: Odd(), "KeyError"),
    "a text": (lambda x: "abc", "returned <U3"),
    "an input that is written to": (lambda x: x.__iadd__(1), "read-only"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("options", [None, sardonyx.RunOptions()])
def test_a_wrong_result_names_the_node(name: str, options: Any) -> None:
    function, said = WRONG[name]
    declare(function)
    made = session(ONE)
    for _ in range(2):
        with pytest.raises(RuntimeException, match=said) as error:
            made.run(None, {"x": X}, options)
        assert "the_node" in str(error.value)


STRANGE: dict[str, Any] = {
    "a scalar of numpy": lambda x: x * np.float32(2),
    "read-only": lambda x: _read_only(x * 2),
    "not contiguous": lambda x: np.repeat(x * 2, 2)[::2],
    "backwards": lambda x: (x * 2)[::-1][::-1],
    "broadcast": lambda x: np.broadcast_to(np.array([2, 4], np.float32), (2,)),
    "a masked array": lambda x: np.ma.masked_array(x * 2, [True, False]),
    "over a buffer": lambda x: np.frombuffer(bytearray((x * 2).tobytes()), np.float32),
    "not aligned": lambda x: _unaligned(x * 2),
    "an object with __array__": lambda x: memoryview(x * 2),
}


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _unaligned(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    memory[1:] = array.view(np.uint8)
    return memory[1:].view(np.float32)


@pytest.mark.parametrize("name", STRANGE)
def test_results_of_any_layout(name: str) -> None:
    declare(STRANGE[name])
    made = session("g (float[n] x) => (float[n] y, float[n] z) { y = acme.Op(x) z = Neg(y) }")
    y, z = made.run(None, {"x": X})
    assert y.tolist() == [2, 4]
    assert z.tolist() == [-2, -4]
    y[:] = 7  # it is the caller's


def test_string_results_that_are_not_strings() -> None:
    results: list[Any] = [np.array(["a", None], object), np.array(["a", 3], object), [b"a", b"b"]]
    custom_op("acme", "Op", inputs="x:float", outputs="y:string", shape="first")(
        lambda x: results[int(x[0])]
    )
    made = session("g (float[2] x) => (string[2] y) { [the_node] y = acme.Op(x) }")
    for i, said in ((0, "returned None at element 1"), (1, "returned 3 at element 1")):
        with pytest.raises(RuntimeException, match=said) as error:
            made.run(None, {"x": np.float32([i, 0])})
        assert "the_node" in str(error.value)
    results[0], results[1] = np.array(["p", "q"]), np.array([b"p", b"\xff"])
    assert made.run(None, {"x": np.float32([0, 0])})[0].tolist() == ["p", "q"]
    assert made.run(None, {"x": np.float32([2, 0])})[0].tolist() == ["a", "b"]
    with pytest.raises(RuntimeException, match="UnicodeDecodeError"):
        made.run(None, {"x": np.float32([1, 0])})


def test_a_function_may_reuse_its_result_buffer() -> None:
    """A buffer that is used again and again is in no two results."""
    buffer = np.zeros(2, np.float32)
    whole = np.zeros((3, 2), np.float32)

    def keep(x: Any) -> Any:
        np.multiply(x, 2, buffer)
        whole[1] = x
        return buffer, whole[1]

    declare(keep, "y:float z:float")
    made = session("g (float[2] x) => (float[2] y, float[2] z) { y, z = acme.Op(x) }")
    first = made.run(None, {"x": X})
    second = made.run(None, {"x": X + 1})
    buffer[:] = whole[:] = -1
    assert [f.tolist() for f in first] == [[2, 4], [1, 2]]
    assert [s.tolist() for s in second] == [[4, 6], [2, 3]]


def test_results_that_are_one_array() -> None:
    def twice(x: Any) -> Any:
        y = x * 2
        return y, y, y[:]

    declare(twice, "a:float b:float c:float")
    text = "g (float[2] x) => (float[2] a, float[2] b, float[2] c) { a, b, c = acme.Op(x) }"
    found = session(text).run(None, {"x": X})
    found[0][:] = 0
    assert [f.tolist() for f in found] == [[0, 0], [2, 4], [2, 4]]


def test_a_fresh_result_is_not_copied() -> None:
    seen: list[int] = []

    def fresh(x: Any) -> Any:
        y = x * 2
        seen.append(y.ctypes.data)
        return y

    declare(fresh)
    (y,) = session(ONE).run(None, {"x": X})
    assert seen == [y.ctypes.data]


@pytest.mark.parametrize("n", [2, 5_000, 100_000])
def test_inputs_that_are_kept_stay_what_they_were(n: int) -> None:
    """No run writes to memory that an array still shows, be it small, a block or a mapping."""
    kept: list[Any] = []
    declare(lambda x: (kept.append(x), x * 2)[1])
    made = session(BETWEEN)
    feeds = [np.full(n, i, np.float32) for i in range(12)]
    for x in feeds:
        made.run(None, {"x": x})
    for x, array in zip(feeds, kept, strict=True):
        np.testing.assert_array_equal(array, -x)
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in kept)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    del made
    gc.collect()
    for x, array in zip(feeds, kept, strict=True):
        np.testing.assert_array_equal(array, -x)


def test_released_inputs_are_freed() -> None:
    held: list[Any] = []
    declare(lambda x: (held.append(weakref.ref(x)), x * 2)[1])
    session(BETWEEN).run(None, {"x": X})
    gc.collect()
    assert held[0]() is None


def test_an_inconsistent_shape_rule() -> None:
    """Nodes after it are compiled for what the rule said of open sizes."""
    declare(lambda x: x * 2, shape=lambda x: x if isinstance(x[0], int) else (x[0] * 1000,))
    made = session("g (float[n] x) => (float[m] y) { [the_node] b = acme.Op(x) y = Exp(b) }")
    for options in (None, sardonyx.RunOptions()):
        with pytest.raises(SardonyxError, match=r"\[2\]") as error:
            made.run(None, {"x": X}, options)
        assert "the_node" in str(error.value)


RULES: dict[str, tuple[Any, str]] = {
    "a number": (lambda x: 5, "returns 5"),
    "a text": (lambda x: "ab", "returns 'ab'"),
    "huge": (lambda x: (2**70,), "for a size"),
    "raises": (lambda x: 1 // 0, "division"),
    "raises anything": (lambda x: _raise(OSError("no rule")), "no rule"),
    "two": (lambda x: [x, x], "returns 2 shapes, not 1"),
}


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("name", RULES)
def test_rules_that_give_no_shape(name: str) -> None:
    rule, said = RULES[name]
    declare(lambda x: x, shape=rule)
    with pytest.raises(SardonyxError, match=said):
        session(ONE)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Stop, GeneratorExit])
def test_base_exceptions_pass_through(kind: type[BaseException]) -> None:
    raised: list[BaseException] = [kind("stop")]
    declare(lambda x: _raise(raised.pop()) if raised else x * 2)
    made = session(BETWEEN)
    with pytest.raises(kind):
        made.run(None, {"x": X})
    np.testing.assert_allclose(made.run(None, {"x": X})[0], np.exp(-2 * X))


def test_a_function_that_runs_its_own_session() -> None:
    depth: list[int] = []

    def down(x: Any) -> Any:
        depth.append(1)
        return x if x[0] <= 0 else -made.run(None, {"x": x - 1})[0]

    declare(down)
    made = session("g (float[1] x) => (float[1] y) { a = acme.Op(x) y = Neg(a) }")
    assert made.run(None, {"x": np.float32([5])})[0].tolist() == [0]
    assert len(depth) == 6
    with pytest.raises(SardonyxError):  # RecursionError, by way of all the nodes
        made.run(None, {"x": np.float32([1e6])})
    assert made.run(None, {"x": np.float32([2])})[0].tolist() == [0]


def test_a_native_function_that_runs_its_own_session() -> None:
    depth: list[float] = []

    def down(inputs: Any, *_: Any) -> int:
        x = ctypes.cast(inputs[0].data, ctypes.POINTER(ctypes.c_float))[0]
        depth.append(x)
        if x > 0:
            made.run(None, {"x": np.float32([x - 1])})
        return 0

    function = C_FUNCTION(down)
    native_op(function, "acme", "Op", inputs="x:float", outputs="y:float", shape="first")
    made = session("g (float[1] x) => (float[1] y) { a = acme.Op(x) y = Neg(a) }")
    made.run(None, {"x": np.float32([100])})
    assert depth == list(range(100, -1, -1))


def test_a_binding_inside_of_its_own_run() -> None:
    def again(x: Any) -> Any:
        made.run_with_iobinding(binding)
        return x

    declare(again)
    made = session(ONE)
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    with pytest.raises(SardonyxError, match="is running this binding") as error:
        made.run_with_iobinding(binding)
    assert "the_node" in str(error.value)
    declare(lambda x: x * 2)
    made = session(ONE)
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    made.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == [2, 4]


def test_terminate_while_a_function_runs() -> None:
    """It ends when it returns; what comes after it does not run."""
    options, later = sardonyx.RunOptions(), []

    def stop(x: Any) -> Any:
        options.terminate = True
        return x * 2

    declare(stop)
    custom_op("acme", "Later", inputs="x:float", outputs="y:float", shape="first")(
        lambda x: (later.append(1), x * 2)[1]
    )
    made = session("g (float[2] x) => (float[2] y) { a = acme.Op(x) y = acme.Later(a) }")
    with pytest.raises(Fail, match="terminate"):
        made.run(None, {"x": X}, options)
    assert not later
    options.terminate = False


def test_functions_of_concurrent_runs() -> None:
    """Runs of other threads go on while a function waits."""
    meet = threading.Barrier(3, timeout=60)

    def wait(x: Any) -> Any:
        meet.wait()
        return x * 2

    declare(wait)
    made, found = session(BETWEEN), []
    threads = [
        threading.Thread(target=lambda i=i: found.append((i, made.run(None, {"x": X * i})[0])))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, y in found:
        np.testing.assert_allclose(y, np.exp(-2 * X * i))
    assert len(found) == 3


@pytest.mark.parametrize("function", [5, -8, 2**63, 2**64 + 4096, 4096])
def test_addresses_with_no_function(function: int) -> None:
    with pytest.raises(InvalidArgument):
        native_op(function, "acme", "N", inputs="x:T", outputs="y:T", shape="first")


def test_a_native_function_writes_to_shapes_that_are_known() -> None:
    function = C_FUNCTION(lambda *_: 0)
    for rule in (lambda x: None, lambda x: [None]):
        native_op(function, "acme", "Op", inputs="x:float", outputs="y:float", shape=rule)
        with pytest.raises(InvalidGraph, match="leaves a shape open"):
            session(ONE)


def test_kept_results_are_detected_by_reference_counts() -> None:
    from sardonyx.custom_ops.python_op import _is_unreferenced

    kept = np.ones(4, np.float32)
    view = np.ones(4, np.float32)[1:]
    shown = np.ones(4, np.float32)
    buffer = memoryview(shown)
    assert not any(_is_unreferenced([a], 0) for a in (kept, kept[1:], kept.T, view, shown))
    assert _is_unreferenced([np.ones(4)], 0)
    assert _is_unreferenced([np.ones((2, 3)).T[1:]], 0)
    assert not _is_unreferenced([np.frombuffer(bytearray(8), np.uint8)], 0)
    assert not _is_unreferenced([np.lib.stride_tricks.as_strided(np.ones(4))], 0)
    assert buffer.nbytes == 16
