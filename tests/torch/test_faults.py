"""Faults of devices: an error that says what to do, or the next provider."""

from __future__ import annotations

import gc
import importlib.util
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.errors import EPFail, Fail, InvalidArgument, RuntimeException
from sardonyx.providers import torch_provider

torch = pytest.importorskip("torch")
from sardonyx.providers.torch import index, options, region  # noqa: E402 - torch may be missing
from sardonyx.providers.torch.loader import TorchLoader  # noqa: E402

CPU, CUDA, TORCH = (f"{n}ExecutionProvider" for n in ("CPU", "CUDA", "Torch"))
ON_CPU = (TORCH, {"device": "cpu"})
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3] x) => (float[n,2] y) <float[3,2] w = {1,2,3,4,5,6}>
{ [first] t = Softmax(x)  [second] y = MatMul(t, w) }"""
X = np.ones((4, 3), np.float32)


def session_of(providers: Any, **entries: str) -> sardonyx.InferenceSession:
    made = sardonyx.SessionOptions()
    for key, value in entries.items():
        made.add_session_config_entry(key.replace("__", "."), value)
    return sardonyx.InferenceSession(parser.parse_model(MODEL), made, providers=providers)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    logger = logging.getLogger("sardonyx")
    logger.addHandler(caplog.handler)
    yield lambda: " ".join(r.getMessage() for r in caplog.records)
    logger.removeHandler(caplog.handler)


def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "torch" else found(n, *a)
    )


def _raising(error: Exception) -> Any:
    def fails(*args: Any, **keywords: Any) -> Any:
        raise type(error)(*error.args)  # one that keeps no session alive

    return fails


def _old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "The NVIDIA driver on your system is too old (found version 11040)."
    monkeypatch.setattr(torch, "zeros", _raising(RuntimeError(said)))


def _no_such_device(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "CUDA error: invalid device ordinal\nCUDA kernel errors might be reported later"
    monkeypatch.setattr(torch, "zeros", _raising(RuntimeError(said)))


STARTS = {
    "no torch": (_no_torch, {}, r"needs torch.*pip install torch"),
    "an old driver": (_old_driver, {"device": "cuda"}, r"cannot use the device cuda.*too old"),
    "no such GPU": (_no_such_device, {"device": "cuda:9"}, r"cuda:9: CUDA error: invalid device"),
    "no device": (lambda m: None, {"device": "warp"}, r"cannot use the device warp"),
    "a wrong value": (
        lambda m: None,
        {"use_tf32": "maybe"},
        r"use_tf32 must be 0 or 1, got 'maybe'",
    ),
    "a wrong limit": (lambda m: None, {"gpu_mem_limit": "2GB"}, r"gpu_mem_limit must be a number"),
}


@pytest.mark.parametrize(("breaks", "given", "match"), STARTS.values(), ids=STARTS)
def test_a_provider_that_does_not_start(
    breaks: Any, given: dict[str, str], match: str, monkeypatch: pytest.MonkeyPatch, warned: Any
) -> None:
    breaks(monkeypatch)
    with pytest.raises((RuntimeException, InvalidArgument)) as caught:
        torch_provider(TORCH, given, logging.getLogger("sardonyx"))
    text = " ".join(str(caught.value).split())
    assert re.search(match, text), text
    session = session_of([(TORCH, given)])  # the CPU serves, with a warning
    assert session.get_providers() == [CPU]
    assert re.search("is not (used|available)", warned())
    with pytest.raises(Fail, match=r"disable_cpu_ep_fallback forbids"):
        session_of([(TORCH, given)], session__disable_cpu_ep_fallback="1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu(warned: Any) -> None:
    session = session_of([CUDA, CPU])
    assert session.get_providers() == [CPU]
    assert f"the provider {CUDA} is not available" in warned()


def test_names_of_options() -> None:
    said: list[str] = []
    options.parse({"gpu_memory_limit": "1", "arena_extend_strategy": "x"}, said.append)
    assert said == [
        "the torch provider has no option gpu_memory_limit; did you mean gpu_mem_limit?"
    ]
    options.parse({"zzz": "1"}, said.append)
    assert "there are device, device_id" in said[1]


def _tensors() -> int:
    gc.collect()
    return sum(type(x) is torch.Tensor for x in gc.get_objects())


def test_out_of_memory_while_loading(monkeypatch: pytest.MonkeyPatch, warned: Any) -> None:
    before = _tensors()
    broken = EPFail("4 MB for the weight 'w' do not fit on cuda:0")
    monkeypatch.setattr(TorchLoader, "load_many", _raising(broken))
    for providers, entries in (
        ([ON_CPU], {}),
        ([ON_CPU, CPU], {"session__disable_cpu_ep_fallback": "1"}),
    ):
        with pytest.raises(EPFail, match="do not fit on cuda:0"):
            session_of(providers, **entries)
        assert _tensors() == before
    session = session_of([ON_CPU, CPU])  # who names the CPU allows it
    assert session.get_providers() == [CPU]
    assert "do not fit on cuda:0" in warned()
    assert session.run(None, {"x": X})[0].shape == (4, 2)
    assert _tensors() == before


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"),
            "is out of memory",
        ),
        (RuntimeError("cuBLAS failed: not initialized"), "RuntimeError: cuBLAS failed"),
    ],
    ids=["memory", "kernel"],
)
def test_a_run_that_fails_names_its_node(
    error: Exception, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = index.KERNELS["", "Softmax"]
    broken = type(kernel)(_raising(error), kernel.types)
    monkeypatch.setitem(index.KERNELS, ("", "Softmax"), broken)
    assert region.KERNELS is index.KERNELS
    session = session_of([ON_CPU])
    with pytest.raises(RuntimeException, match=match) as caught:
        session.run(None, {"x": X})
    assert "first (Softmax)" in str(caught.value)


def test_a_run_beyond_the_limit_ends_before_it_begins() -> None:
    session = session_of([(TORCH, {"device": "cpu", "gpu_mem_limit": "1000"})])
    assert session.run(None, {"x": X})[0].shape == (4, 2)
    with pytest.raises(RuntimeException, match=r"gpu_mem_limit allows 1,000") as caught:
        session.run(None, {"x": np.ones((100, 3), np.float32)})
    assert "24 of them for weights" in str(caught.value)
    assert session.run(None, {"x": X})[0].shape == (4, 2)
