"""Sessions of one model with equal options share a program, and no others do."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.compile import compile
from tests.decoder import Decoder, generate


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Files as young as these may change within a tick of the clock; here they do not.
    monkeypatch.setattr("sardonyx.load.source._SETTLED_NS", 0)
    return Decoder("qoperator").save(tmp_path / "model.onnx")


def program(session: ort.InferenceSession) -> Any:
    return session._compiled.program


def test_equal_sessions_share(model: Path) -> None:
    first, second = ort.InferenceSession(model), ort.InferenceSession(str(model))
    assert program(first) is program(second)
    same = zip(generate(first, [[1, 2]], 2), generate(second, [[1, 2]], 2), strict=True)
    for a, b in same:
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "change",
    [
        lambda o: setattr(
            o, "graph_optimization_level", ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        ),
        lambda o: setattr(o, "intra_op_num_threads", 1),
        lambda o: o.add_free_dimension_override_by_name("batch", 1),
        lambda o: o.add_session_config_entry("sardonyx.grow_in_place", "0"),
        lambda o: o.add_session_config_entry("sardonyx.weights", "copied"),
        lambda o: setattr(o, "enable_profiling", True),
        lambda o: setattr(o, "enable_cpu_mem_arena", False),
        lambda o: o.add_session_config_entry("session.use_env_allocators", "1"),
        lambda o: o.add_session_config_entry("sardonyx.max_arena_bytes", "1GB"),
        lambda o: o.add_session_config_entry("sardonyx.cache_pages", "1"),
        lambda o: o.add_session_config_entry("sardonyx.consume_inputs", "1"),
    ],
    ids=[
        "level",
        "threads",
        "dims",
        "growing",
        "copied",
        "profile",
        "arena",
        "pool",
        "limit",
        "pages",
        "consumed",
    ],
)
def test_other_options_are_another_program(
    model: Path, change: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    change(options)
    first, second = ort.InferenceSession(model), ort.InferenceSession(model, options)
    assert program(first) is not program(second)


def test_a_dropped_program_is_gone(model: Path) -> None:
    first = ort.InferenceSession(model)
    number = id(program(first))
    kept = program(first)
    del first
    assert program(ort.InferenceSession(model)) is not kept
    assert number == id(kept)


def test_a_data_file_that_was_replaced_is_seen(model: Path) -> None:
    first = ort.InferenceSession(model)
    before = generate(first, [[1, 2]], 0)[0]
    data = Path(f"{model}.data")
    other = data.with_suffix(".new")
    shutil.copy(data, other)
    content = bytearray(other.read_bytes())
    content[:4096] = np.zeros(1024, np.float32).tobytes()
    other.write_bytes(content)
    os.replace(other, data)
    second = ort.InferenceSession(model)
    assert program(first) is not program(second)
    np.testing.assert_array_equal(before, generate(first, [[1, 2]], 0)[0])


def test_one_buffer_one_program() -> None:
    data = Decoder("qoperator").model().SerializeToString()
    first, second = ort.InferenceSession(data), ort.InferenceSession(data)
    third = ort.InferenceSession(bytearray(data))
    assert program(first) is program(second)
    assert program(first) is not program(third)


def test_a_program_keeps_its_buffer() -> None:
    """A new buffer cannot have the address of one that a living program keeps."""
    sessions = []
    for token in range(20):
        decoder = Decoder("float32", layers=1, _rng=np.random.default_rng(token))
        sessions.append(ort.InferenceSession(decoder.model().SerializeToString()))
    assert len({id(program(s)) for s in sessions}) == len(sessions)


def test_a_link_that_leads_elsewhere_is_seen(model: Path) -> None:
    data = Path(f"{model}.data")
    old, new = data.with_suffix(".old"), data.with_suffix(".new")
    data.rename(old)
    new.write_bytes(bytes(old.stat().st_size))
    data.symlink_to(old.name)
    first = ort.InferenceSession(model)
    data.unlink()
    data.symlink_to(new.name)
    assert program(first) is not program(ort.InferenceSession(model))


def test_a_data_file_that_is_still_being_written_is_not_shared(model: Path) -> None:
    """Written again within a tick of the clock, it would look the same."""
    soon = time.time_ns() + 3_600_000_000_000
    os.utime(f"{model}.data", ns=(soon, soon))
    first, second = ort.InferenceSession(model), ort.InferenceSession(model)
    assert program(first) is not program(second)


def test_a_data_file_that_is_replaced_while_it_is_compiled_is_seen(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(f"{model}.data")

    def compile_and_replace(*args: Any) -> Any:
        made = compile(*args)
        other = data.with_suffix(".new")
        other.write_bytes(bytes(data.stat().st_size))
        os.replace(other, data)
        return made

    monkeypatch.setattr("sardonyx.session.inference.compile", compile_and_replace)
    first, second = ort.InferenceSession(model), ort.InferenceSession(model)
    assert program(first) is not program(second)
