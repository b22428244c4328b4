"""OrtMemoryInfo, OrtArenaCfg and registered allocators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sardonyx as ort
from sardonyx.errors import InvalidArgument, NotImplemented, RuntimeException
from tests.session.test_memory import SHARED, feed, session

CPU = ("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)


@pytest.fixture(autouse=True)
def unbound() -> Iterator[None]:
    yield
    ort.create_and_register_allocator(ort.OrtMemoryInfo(*CPU), None)


@pytest.mark.parametrize("made", [(2_000_000, -1, -1, -1), ({"max_mem": 2_000_000},)])
def test_a_bound_for_sessions_that_share(made: tuple[Any, ...]) -> None:
    ort.create_and_register_allocator(ort.OrtMemoryInfo(*CPU), ort.OrtArenaCfg(*made))
    shared = session(**{SHARED: "1"})
    shared.run(None, feed(64))
    with pytest.raises(RuntimeException, match="allows 2,000,000"):
        shared.run(None, feed(1024))
    session().run(None, feed(1024))  # has memory of its own


def test_the_lower_bound_holds() -> None:
    info, config = ort.OrtMemoryInfo(*CPU), ort.OrtArenaCfg({"max_mem": 2_000_000})
    ort.create_and_register_allocator_v2("CPUExecutionProvider", info, {}, config)
    made = session(**{SHARED: "1", "sardonyx.max_arena_bytes": "1MB"})
    with pytest.raises(RuntimeException, match="allows 1,000,000"):
        made.run(None, feed(1024))


def test_no_bound_is_the_default() -> None:
    ort.create_and_register_allocator(ort.OrtMemoryInfo(*CPU), ort.OrtArenaCfg(0, -1, -1, -1))
    session(**{SHARED: "1"}).run(None, feed(1024))


def test_attributes_of_arena_and_memory_info() -> None:
    config = ort.OrtArenaCfg({"max_mem": 5, "initial_growth_chunk_size_bytes": 3})
    assert (config.max_mem, config.initial_growth_chunk_size_bytes) == (5, 3)
    assert (config.arena_extend_strategy, config.max_dead_bytes_per_chunk) == (-1, -1)
    info = ort.OrtMemoryInfo(*CPU)
    assert (info.name, info.device_id, info.mem_type) == ("Cpu", 0, ort.OrtMemType.DEFAULT)
    assert info.allocator_type is ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR


def test_memory_of_devices_is_not_shared() -> None:
    gpu = ort.OrtMemoryInfo.create_v2(
        "anything",
        ort.OrtMemoryInfoDeviceType.GPU,
        0x10DE,
        1,
        ort.OrtDeviceMemoryType.DEFAULT,
        0,
        ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
    )
    assert (gpu.name, gpu.device_id, gpu.device_vendor_id) == ("anything", 1, 0x10DE)
    for info in (gpu, ort.OrtMemoryInfo("Cuda", *CPU[1:])):
        with pytest.raises(NotImplemented, match="memory of the CPU"):
            ort.create_and_register_allocator(info)
    with pytest.raises(NotImplemented, match="CUDAExecutionProvider"):
        ort.create_and_register_allocator_v2("CUDAExecutionProvider", gpu, {})


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: ort.OrtArenaCfg({"bogus": 1}), InvalidArgument, "no option 'bogus'"),
        (lambda: ort.OrtArenaCfg({"max_mem": "a"}), InvalidArgument, "must be a number"),
        (lambda: ort.OrtArenaCfg(-1), InvalidArgument, "must be a number from 0 on"),
        (lambda: ort.OrtArenaCfg(0, -1, -1, -1, -1), TypeError, "4 positional arguments"),
        (lambda: ort.OrtMemoryInfo("cpu", *CPU[1:]), InvalidArgument, "no memory 'cpu'"),
        (lambda: ort.create_and_register_allocator("Cpu"), TypeError, "OrtMemoryInfo"),
        (
            lambda: ort.create_and_register_allocator(ort.OrtMemoryInfo(*CPU), {"max_mem": 1}),
            TypeError,
            "OrtArenaCfg",
        ),
    ],
)
def test_wrong_arguments(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()
