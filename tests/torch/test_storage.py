"""Memory of fed tensors: read in place, kept alive, and never reused."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx import OrtValue, RunOptions
from sardonyx.errors import ValueFault

torch = pytest.importorskip("torch")

TORCH = [("TorchExecutionProvider", {"device": "cpu"})]
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3] x, float[n,3] y) => (float[n,3] z) { z = Add(x, y) }"""
Y = np.full((2, 3), 2, np.float32)


def session_of(text: str, providers: Any = None) -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(parser.parse_model(text), providers=providers)


def by_run(session: Any, x: torch.Tensor) -> None:
    session.run(None, {"x": x, "y": Y})


def by_checked_run(session: Any, x: torch.Tensor) -> None:
    session.run(None, {"x": x, "y": Y}, RunOptions())


def by_ort_values(session: Any, x: torch.Tensor) -> None:
    values_by_name = {"x": OrtValue(x), "y": OrtValue.ortvalue_from_numpy(Y)}
    session.run_with_ort_values(None, values_by_name)


def by_dlpack(session: Any, x: torch.Tensor) -> None:
    session.run(None, {"x": OrtValue.from_dlpack(x), "y": Y})


def by_binding(session: Any, x: torch.Tensor) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("y", Y)
    binding.bind_ortvalue_output("z", OrtValue(torch.empty(2, 3)))
    session.run_with_iobinding(binding)


WAYS = [by_run, by_checked_run, by_ort_values, by_dlpack, by_binding]


@pytest.mark.parametrize("providers", [TORCH, None], ids=["torch", "cpu"])
@pytest.mark.parametrize("way", WAYS)
def test_storage_can_be_resized_after_a_run(way: Any, providers: Any) -> None:
    """As FSDP does with parameters that are not gathered."""
    for x in (torch.ones(2, 3), torch.nn.Parameter(torch.ones(2, 3)), torch.ones(4, 3)[1:3]):
        way(session_of(MODEL, providers), x)
        x.untyped_storage().resize_(0)


def test_values_over_a_resized_storage_are_refused() -> None:
    x, z = torch.ones(2, 3), torch.ones(2, 3)
    value, session = OrtValue(x), session_of(MODEL)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_cpu_input("y", Y)
    binding.bind_ortvalue_output("z", OrtValue(z))
    session.run_with_iobinding(binding)
    for tensor in (x, z):
        tensor.untyped_storage().resize_(0)
        with pytest.raises(ValueFault, match=r"(?s)was resized.*again"):
            session.run_with_iobinding(binding)
        tensor.untyped_storage().resize_(24)
        binding.bind_cpu_input("x", x)
    for use in (value.numpy, value.data_ptr, lambda: session.run(None, {"x": value, "y": Y})):
        x.untyped_storage().resize_(0)
        with pytest.raises(ValueFault, match="was resized"):
            use()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.bool, torch.int64])
def test_an_array_keeps_its_tensor_alive(dtype: torch.dtype) -> None:
    x = torch.arange(6).to(dtype)
    copy, value = x.clone(), OrtValue(x)
    gone = weakref.ref(x)
    del x
    array = value.numpy()
    assert gone() is None
    assert copy.view(torch.uint8).tolist() == array.view(np.uint8).tolist()
    assert OrtValue(torch.zeros(0, 2, dtype=dtype)).numpy().shape == (0, 2)
    assert OrtValue(torch.ones((), dtype=dtype)).numpy() == 1


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """A process group of this process alone."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("the FSDP of this torch does not run on the CPU")
    device_mesh = pytest.importorskip("torch.distributed.device_mesh")
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1
    )
    try:
        yield device_mesh.init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


class Exported(torch.nn.Module):
    """A layer that a session computes; its parameter is fed to it."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3))
        self.session = session

    def forward(self, x: Any) -> Any:
        (made,) = self.session.run(None, {"x": x, "y": self.weight})
        return torch.from_numpy(made) + self.weight


def test_fsdp_gathers_and_frees_a_parameter_that_is_fed(mesh: Any) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = Exported(session_of(MODEL))
    fsdp.fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for _ in range(2):  # the second gathers into storage that the first freed
        x = torch.ones(2, 3)
        model(x).sum().backward()
        assert model.weight.grad.full_tensor().tolist() == [[1] * 3] * 2
        with pytest.raises(ValueFault, match=r"(?s)DTensor stands for a tensor.*to_local"):
            OrtValue(model.weight)
        model.zero_grad()
