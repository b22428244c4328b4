"""Memory of runs: cached blocks, shrinking, limits, and release with the session."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
import sardonyx._native as native
from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.ort.options import byte_count
from sardonyx.program.limit import peak, union_bytes
from sardonyx.program.native import NativeSegment
from tests.session.concurrently import run_concurrently

SHRINK = "memory.enable_memory_arena_shrinkage"
LIMIT = "sardonyx.max_arena_bytes"
SHARED = "session.use_env_allocators"
WIDTH = 1024
ROW = 4 * WIDTH  # bytes
# A softmax between two others: an arena and an output of the size of the input. `a` is
# written into the block of y.
MODEL = f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y) {{
  a = Softmax (x)
  t = Transpose (a)
  b = Softmax <axis = 0> (t)
  u = Transpose (b)
  y = Softmax (u)
}}
"""
GATHER = f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, {WIDTH}] x, int64[M] i) => (float[M, {WIDTH}] y) {{
  a = Softmax (x)
  b = Gather (a, i)
  y = Softmax (b)
}}
"""
LOOP = f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, {WIDTH}] x, int64 n) => (float[T, N, {WIDTH}] all) {{
  last, all = Loop (n, , x)
  <body = b (int64 i, bool go, float[N, {WIDTH}] v)
       => (bool go_on, float[N, {WIDTH}] more, float[N, {WIDTH}] each) {{
    more = Softmax (v)
    each = Softmax (more)
    go_on = Identity (go)
  }}>
}}
"""


@pytest.fixture
def cached() -> Callable[[], int]:
    """The bytes that are cached by pools of this test: sessions of other tests may be alive."""
    gc.collect()
    before = native.cached_bytes()
    return lambda: native.cached_bytes() - before


def model(text: str = MODEL) -> bytes:
    return bytes(onnx.parser.parse_model(text).SerializeToString())


def session(
    text: str = MODEL, change: Callable[[Any], None] | None = None, **entries: str
) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 1
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    if change is not None:
        change(options)
    return sardonyx.InferenceSession(model(text), options)


def feed(rows: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)}


def pool(made: sardonyx.InferenceSession) -> native.BlockPool:
    return made._program.pool


def shrinking(value: str = "cpu:0") -> sardonyx.RunOptions:
    options = sardonyx.RunOptions()
    options.add_run_config_entry(SHRINK, value)
    return options


def test_the_same_blocks_serve_every_run() -> None:
    made, inputs = session(), feed(256)
    seen = set()
    for _ in range(40):
        outputs = made.run(None, inputs)
        assert pool(made).live_blocks == 1
        seen.add(outputs[0].ctypes.data)
        del outputs
        assert (pool(made).cached_blocks, pool(made).live_blocks) == (2, 0)
    assert len(seen) == 1


def test_small_runs_keep_nothing() -> None:
    made = session()
    made.run(None, feed(1))
    assert pool(made).cached_bytes == 0


def test_kept_memory_follows_the_shapes() -> None:
    made, large, small = session(), feed(1024), feed(64)
    made.run(None, small)
    alone = pool(made).cached_bytes
    made.run(None, large)
    most = pool(made).cached_bytes
    assert most > 10 * alone
    for _ in range(40):
        made.run(None, small)
    assert pool(made).cached_bytes <= alone * 9 / 8 + 8192


def test_outputs_hold_at_most_twice_their_size() -> None:
    made = session()
    made.run(None, feed(1024))
    before = pool(made).cached_blocks
    held = made.run(None, feed(256))
    assert pool(made).cached_blocks == before  # the large block waits for a large output
    assert held[0].nbytes == 256 * ROW


def test_runs_with_changing_shapes_do_not_grow() -> None:
    made = session()
    feeds = [feed(n) for n in (8, 300, 33, 120, 256, 64, 17, 200, 90, 150)]
    most: list[int] = []
    for inputs in itertools.islice(itertools.cycle(feeds), 300):
        made.run(None, inputs)
        most.append(pool(made).cached_bytes)
        assert pool(made).live_blocks == 0
        assert pool(made).cached_blocks <= 6
    assert max(most[150:]) <= max(most[:150])
    assert max(most) <= 2.5 * (300 * ROW * 3)


def test_shrinking_frees_all_cached_blocks() -> None:
    made, inputs = session(), feed(256)
    held = made.run(None, inputs)
    assert pool(made).cached_bytes > 0
    expected = made.run(None, inputs)[0].copy()
    latest = made.run(None, inputs, shrinking())
    assert pool(made).cached_bytes == 0
    np.testing.assert_array_equal(latest[0], expected)
    del held, latest  # these were in use then: they go at once, too
    assert (pool(made).cached_bytes, pool(made).live_blocks) == (0, 0)
    made.run(None, inputs)
    assert pool(made).cached_bytes > 0


def test_a_run_that_fails_shrinks_too() -> None:
    made = session(GATHER)
    made.run(None, {**feed(64), "i": np.zeros(64, np.int64)})
    with pytest.raises(InvalidArgument, match="outside"):
        made.run(None, {**feed(64), "i": np.full(64, 99)}, shrinking())
    assert pool(made).cached_bytes == 0


@pytest.mark.parametrize("value", ["cpu:0", "cpu", "cpu:0;gpu:0", "cpu:0;", "cpu:00", "cpu;gpu"])
def test_devices_to_shrink(value: str) -> None:
    made = session()
    made.run(None, feed(64))
    made.run(None, feed(64), shrinking(value))
    assert pool(made).cached_bytes == 0


def test_no_device_shrinks_nothing() -> None:
    made = session()
    made.run(None, feed(64), shrinking(""))
    assert pool(made).cached_bytes > 0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("cpu:1", "does not name cpu:0"),
        ("gpu:0", "does not name cpu:0"),
        ("cpu:-1", "does not name cpu:0"),
        ("cpu:x", "names the device 'cpu:x'"),
        ("CPU:0", "names the device 'CPU:0'"),
        ("cpu:0;npu:0", "names the device 'npu:0'"),
        (" cpu:0", "names the device ' cpu:0'"),
        (":0", "names the device ':0'"),
    ],
)
def test_devices_that_cannot_shrink(value: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        session().run(None, feed(1), shrinking(value))


def test_an_arena_that_is_off_keeps_nothing(cached: Callable[[], int]) -> None:
    made = session(change=lambda o: setattr(o, "enable_cpu_mem_arena", False))
    held = made.run(None, feed(256))
    assert pool(made).live_blocks == 1
    assert cached() == 0
    del held
    assert (pool(made).cached_bytes, pool(made).live_blocks) == (0, 0)
    with pytest.raises(InvalidArgument, match="is disabled"):
        made.run(None, feed(1), shrinking())


@pytest.mark.parametrize("name", ["enable_mem_pattern", "enable_mem_reuse"])
def test_options_that_choose_nothing_are_accepted(name: str) -> None:
    made = session(change=lambda o: setattr(o, name, False))
    np.testing.assert_array_equal(made.run(None, feed(3))[0], session().run(None, feed(3))[0])


def test_outputs_outlive_their_session(cached: Callable[[], int]) -> None:
    made = session()
    held = made.run(None, feed(256))
    expected = held[0].copy()
    del made
    gc.collect()
    assert cached() == 0
    np.testing.assert_array_equal(held[0], expected)
    del held
    assert cached() == 0


def test_one_pool_for_sessions_that_share(cached: Callable[[], int]) -> None:
    first, second = session(**{SHARED: "1"}), session(GATHER, **{SHARED: "1"})
    assert pool(first) is pool(second)
    assert pool(first) is not pool(session())
    for _ in range(3):
        first.run(None, feed(256))
        second.run(None, {**feed(256), "i": np.arange(256)})
    assert pool(first).cached_blocks == 2  # an arena and an output, for both
    del first
    gc.collect()
    assert cached() > 0
    del second
    gc.collect()
    assert cached() == 0


def test_an_unknown_share_mode_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match=SHARED):
        session(**{SHARED: "yes"})


def test_a_loop_frees_all_blocks() -> None:
    made = session(LOOP)
    inputs = {**feed(64), "n": np.array(20)}
    for _ in range(3):
        (found,) = made.run(None, inputs)
        assert found.shape == (20, 64, WIDTH)
    assert pool(made).live_blocks == 1
    assert pool(made).cached_bytes <= 4 * found.nbytes


def test_runs_of_several_threads_share_a_pool() -> None:
    made = session()
    rows = (16, 64, 128, 300)
    expected = {n: made.run(None, feed(n))[0].copy() for n in rows}

    def caller(n: int) -> Callable[[int], None]:
        inputs = feed(n)
        return lambda _: np.testing.assert_array_equal(made.run(None, inputs)[0], expected[n])

    run_concurrently(*map(caller, rows), times=25)
    assert pool(made).live_blocks == 0
    for _ in range(40):
        made.run(None, feed(16))
    assert pool(made).cached_blocks <= 2


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    made, inputs = session(), feed(256)
    expected = made.run(None, inputs)[0].copy()
    child = os.fork()
    if child == 0:
        good = np.array_equal(made.run(None, inputs, shrinking())[0], expected)
        os._exit(0 if good and pool(made).cached_bytes == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pool(made).cached_blocks == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("17", 17), ("3B", 3), ("512MB", 512 * 10**6), ("2GiB", 2**31), ("4 kib", 4096)],
)
def test_numbers_of_bytes(text: str, count: int) -> None:
    assert byte_count("key", text) == count


@pytest.mark.parametrize("text", ["", "MB", "-1", "1.5GB", "2TiBs", "ten", "1e9", "3XB"])
def test_wrong_numbers_of_bytes(text: str) -> None:
    with pytest.raises(InvalidArgument, match=LIMIT):
        session(**{LIMIT: text})


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 200), st.booleans(), st.booleans()), max_size=30))
def test_random_sequences_of_runs(steps: list[tuple[int, bool, bool]]) -> None:
    """Right results in memory that no one else has, and no block that is lost."""
    made, held = session(), []
    for rows, stays, shrinks in steps:
        inputs = {"x": np.full((rows, WIDTH), rows, np.float32)}
        (found,) = made.run(None, inputs, shrinking() if shrinks else None)
        if stays:
            held.append(found)
        else:
            found[:] = np.nan  # whoever gets this block next must not see it
        del found
        assert pool(made).live_blocks == sum(h.nbytes >= 1 << 15 for h in held)
    sums = [float(each.sum()) for each in held]
    np.testing.assert_allclose(sums, [len(each) for each in held], rtol=1e-5)
    made.run(None, feed(1), shrinking())
    held.clear()
    assert (pool(made).cached_bytes, pool(made).live_blocks) == (0, 0)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_the_peak_step_is_that_of_the_plan(rows: int) -> None:
    made = session()
    (segment,) = made._compiled.program.segments
    assert isinstance(segment, NativeSegment)
    assert segment._runnable is not None
    memory = segment._runnable.memory_of(0, [rows])
    assert memory is not None
    assert union_bytes(peak(memory)[1]) == memory["lower_bound"]
    assert segment._runnable.memory_of(9, [rows]) is None


PROCESS = """
import gc, sys
import numpy as np
import sardonyx
import sardonyx._native as native
from tests.session.test_memory import GATHER, SHARED, feed, session

def resident():
    gc.collect()
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

def one():
    session().run(None, large)

def several():
    made = [session(**entries) for _ in range(3)]
    for each in made * 2:
        each.run(None, large)

def outliving():
    held = session().run(None, large)
    gc.collect()
    assert native.cached_bytes() == 0 and held[0].sum() > 0

def failing():
    made = session(GATHER, **entries)
    for n in (0, 10**6) * 3:
        try:
            made.run(None, {**large, "i": np.full(2048, n)})
        except sardonyx.SardonyxError:
            pass

def threads():
    import threading
    made = session()
    callers = [threading.Thread(target=made.run, args=(None, large)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

entries = {SHARED: "1"} if "shared" in sys.argv else {}
large = feed(2048)
session().run(None, feed(2))  # what the first session brings with it stays
before = resident()
scenario = globals()[sys.argv[1]]
for _ in range(2):
    scenario()
    gc.collect()
    assert native.cached_bytes() == 0, native.cached_bytes()
print(resident() - before)
"""


@pytest.mark.parametrize(
    "scenario",
    ["one", "several", "several shared", "outliving", "failing", "failing shared", "threads"],
)
def test_nothing_is_kept_of_a_session_that_is_gone(scenario: str) -> None:
    command = [sys.executable, "-c", PROCESS, *scenario.split()]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) < 3 << 20  # of 8 MiB for each array of a run


SCARCE = """
import resource
from tests.session.test_memory import feed, pool, session
made = session()
made.run(None, feed(64))
large = feed(20_000)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (64 << 20),) * 2)
try:
    made.run(None, large)
except Exception as error:
    print(type(error).__name__, error)
made.run(None, feed(64))
assert pool(made).live_blocks == 0
"""


def test_out_of_memory() -> None:
    command = [sys.executable, "-c", SCARCE]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "RuntimeException" in found.stdout
    assert "out of memory of 1" in found.stdout


def test_a_run_above_the_limit_says_where() -> None:
    made = session(**{LIMIT: "2MB"})
    made.run(None, feed(64))
    kept = pool(made).cached_bytes
    with pytest.raises(RuntimeException) as caught:
        made.run(None, feed(1024))
    assert pool(made).cached_bytes == kept  # nothing was allocated
    assert f"{LIMIT} allows 2,000,000" in caught.value.what
    assert "Softmax" in caught.value.where["node"]
    size = 1024 * ROW
    alive = f"b:f32[1024, 1024] {size:,}, y:f32[1024, 1024] (output) {size:,}"
    assert caught.value.where["alive"] == f"{2 * size:,} bytes at this step: {alive}"
    assert "smaller batch" in caught.value.where["hint"]
    made.run(None, feed(64))


def test_a_limit_is_what_is_needed() -> None:
    """One byte below it fails, with the number that is enough."""
    made = session(**{LIMIT: "1"})
    with pytest.raises(RuntimeException) as caught:
        made.run(None, feed(100))
    wanted = int(caught.value.what.split(" takes ")[1].split()[0].replace(",", ""))
    session(**{LIMIT: str(wanted)}).run(None, feed(100))
    with pytest.raises(RuntimeException, match=f"takes {wanted:,} bytes"):
        session(**{LIMIT: str(wanted - 1)}).run(None, feed(100))


def test_scan_outputs_count_for_the_limit() -> None:
    made = session(LOOP, **{LIMIT: "4MB"})
    made.run(None, {**feed(64), "n": np.array(3)})
    with pytest.raises(RuntimeException, match="allows 4,000,000") as caught:
        made.run(None, {**feed(64), "n": np.array(1000)})
    assert f"each:f32[64, {WIDTH}] (output) {64 * ROW:,}" in caught.value.where["alive"]
    assert pool(made).live_blocks == 0
    made.run(None, {**feed(64), "n": np.array(3)})
