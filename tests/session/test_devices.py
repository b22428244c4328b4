"""OrtDevice, device lists, and OrtValues on devices."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx import OrtDevice, OrtMemoryInfo, OrtValue
from sardonyx.capi.onnxruntime_pybind11_state import OrtValueVector
from sardonyx.errors import ValueFault
from sardonyx.ort import ep_devices
from sardonyx.ort.device import torch_name
from sardonyx.ort.device_enums import OrtAllocatorType, OrtDeviceMemoryType, OrtMemType
from sardonyx.ort.enums import OrtExecutionProviderDevicePolicy
from sardonyx.place.provider import HOST
from sardonyx.providers import probe

F32 = np.arange(6, dtype=np.float32).reshape(2, 3)
ADD = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3] x) => (float[n,3] y) { y = Add(x, x) }"""
NAMES = {
    "cpu": HOST, "cuda": "cuda:1", "gpu": "cuda:1", "xpu": "xpu:1", "mps": "mps:1",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_devices(name: str) -> None:
    assert torch_name(name, 1) == NAMES[name]
    assert torch_name(OrtDevice.make(name, 1)) == NAMES[name]


@pytest.mark.parametrize("name", ["npu", "cann", "dml"])
def test_devices_that_torch_does_not_drive(name: str) -> None:
    with pytest.raises(ValueFault, match="are not supported"):
        torch_name(name)


def test_cpu_sessions_do_not_import_torch() -> None:
    code = """if True:
        import sys, numpy as np, sardonyx
        from onnx import parser
        x = np.zeros((2, 3), np.float32)
        model = parser.parse_model('''%s''')
        session = sardonyx.InferenceSession(model)
        session.run(None, {"x": sardonyx.OrtValue(x)})
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        sardonyx.get_device(), sardonyx.get_available_providers()
        session.get_input_memory_infos(), session.get_input_epdevices()
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code % ADD], check=True)


def test_without_torch_a_device_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("sardonyx.providers.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delattr("sardonyx.providers.torch", raising=False)
    with pytest.raises(ValueFault, match=r"cuda:0 are torch tensors, and torch cannot be imported"):
        OrtValue.ortvalue_from_numpy(F32, "cuda")


VERSIONS = [
    ("cuda: Optional[str] = '12.8'\n", True),
    ('cuda = "13.0"\n', True),
    ("cuda: Optional[str] = None\nhip = '6.2'\n", False),
    ("hip: Optional[str] = '6.2'\n", False),
    ("", False),
]


@pytest.mark.parametrize(("text", "works"), VERSIONS)
def test_cuda_is_detected_without_torch(
    text: str, works: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it was imported')")
    (package / "version.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(probe.os.path, "exists", lambda path: "nvidia" in path)
    assert (not probe.why_no_cuda.__wrapped__()) is works
    monkeypatch.setattr(probe.os.path, "exists", lambda path: False)
    assert probe.why_no_cuda.__wrapped__()


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("torch")
    from sardonyx.providers.torch import device_tensors as values

    monkeypatch.setattr(ep_devices, "cuda_may_work", lambda: True)
    monkeypatch.setattr(probe, "cuda_may_work", lambda: True)
    monkeypatch.setattr(values, "gpus", lambda: [(0x2335, {"name": f"GPU {i}"}) for i in (0, 1)])
    _forget()
    yield
    _forget()


def _forget() -> None:
    ep_devices.get_ep_devices.cache_clear()
    ep_devices.get_hardware_devices.cache_clear()


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_listed_after_the_cpu() -> None:
    assert sardonyx.get_device() == "GPU"
    assert sardonyx.get_available_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    cpu, first, second = sardonyx.get_ep_devices()
    assert cpu.memory_info(OrtDeviceMemoryType.DEFAULT) is None
    assert (first.ep_name, first.device.device_id) == ("CUDAExecutionProvider", 0x2335)
    assert second.device.metadata == {"name": "GPU 1"}
    assert second.ep_options == {"device_id": "1"}
    own, pinned = (
        second.memory_info(kind)
        for kind in (OrtDeviceMemoryType.DEFAULT, OrtDeviceMemoryType.HOST_ACCESSIBLE)
    )
    assert own is not None
    assert pinned is not None
    assert (own.name, own.device_id, own.device_vendor_id) == ("Cuda", 1, 0x10DE)
    assert pinned.name == "CudaPinned"
    assert ep_devices.ep_device_of("cuda:1") is second
    assert ep_devices.ep_device_of("torch-cpu") is cpu
    with pytest.raises(ValueFault, match="on the CPU, which has no streams"):
        cpu.create_sync_stream()
    with pytest.raises(ValueFault, match="create_sync_stream"):
        sardonyx.OrtSyncStream()


POLICIES = {
    OrtExecutionProviderDevicePolicy.MAX_PERFORMANCE: "CUDAExecutionProvider",
    OrtExecutionProviderDevicePolicy.PREFER_GPU: "CUDAExecutionProvider",
    OrtExecutionProviderDevicePolicy.PREFER_CPU: "CPUExecutionProvider",
    OrtExecutionProviderDevicePolicy.DEFAULT: "CPUExecutionProvider",
}


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_chooses_a_device(policy: OrtExecutionProviderDevicePolicy) -> None:
    options = sardonyx.SessionOptions()
    options.set_provider_selection_policy(policy)
    name = POLICIES[policy]
    wanted = [(name, {"device_id": "0"} if name.startswith("CUDA") else {})]
    assert options._chosen_providers(dict) == wanted


@pytest.mark.usefixtures("two_gpus")
def test_a_provider_for_a_device_gets_its_number() -> None:
    options = sardonyx.SessionOptions()
    options.add_provider_for_devices(sardonyx.get_ep_devices()[2:], {"use_tf32": "0"})
    wanted = [("CUDAExecutionProvider", {"device_id": "1", "use_tf32": "0"})]
    assert options._chosen_providers(dict) == wanted
    options = sardonyx.SessionOptions()
    options.set_provider_selection_policy_delegate(lambda devices, *_: devices[::-1])
    assert options._chosen_providers(dict) == [
        ("CUDAExecutionProvider", {"device_id": "1"}),
        ("CPUExecutionProvider", {}),
    ]


MEMORIES = {
    "cpu": ("Cpu", 0, 0),
    "torch-cpu": ("Cpu", 0, 0),
    "cuda:1": ("Cuda", 1, 0x10DE),
    "xpu:0": ("xpu", 0, 0x8086),
    "other:2": ("other", 2, 0),
}


@pytest.mark.parametrize("device", MEMORIES)
def test_memory_of_devices(device: str) -> None:
    made = ep_devices.memory_of(device)
    assert (made.name, made.device_id, made.device_vendor_id) == MEMORIES[device]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Memory of cuda:0 is torch's CPU memory, in tensors: what touches it as arrays would fail."""
    torch = pytest.importorskip("torch")
    from sardonyx.providers.torch import device_tensors as values

    monkeypatch.setattr(values, "device_of", lambda name: torch.device("cpu"))
    return torch


KINDS: list[Any] = [
    F32,
    F32.astype(np.float16),
    F32.astype(ml_dtypes.bfloat16),
    F32.astype(ml_dtypes.float8_e4m3fn),
    F32.astype(np.uint16),
    F32 > 2,
    F32.astype(np.complex64),
    np.array(3, np.int64),
    np.zeros((0, 2), np.int32),
    np.array([[-8, 7, 3], [0, -1, 2]]).astype(ml_dtypes.int4),
]


@pytest.mark.parametrize("array", KINDS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_values_on_a_device(array: Any, elsewhere: Any) -> None:
    here, there = OrtValue(array), OrtValue.ortvalue_from_numpy(array, "cuda")
    assert isinstance(there._value, elsewhere.Tensor)
    for method in ("shape", "element_type", "data_type", "tensor_size_in_bytes", "is_tensor"):
        assert getattr(there, method)() == getattr(here, method)(), method
    assert there.data_ptr() == there._value.data_ptr()
    assert there.numpy().tobytes() == array.tobytes()
    assert there.numpy().dtype == array.dtype
    assert np.asarray(there).shape == array.shape
    zeros = OrtValue.ortvalue_from_shape_and_type(array.shape, here.element_type(), "cuda")
    assert not zeros.numpy().astype(bool).any()
    for source in (there, here):
        zeros.update_inplace(source)
        assert zeros.numpy().tobytes() == array.tobytes()
    back = OrtValue(np.zeros_like(array))
    back.update_inplace(there)
    assert back.numpy().tobytes() == array.tobytes()


def test_values_are_updated_from_anything(elsewhere: Any) -> None:
    there = OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32), "cuda")
    address = there.data_ptr()
    there.update_inplace(F32.T.copy().T)
    np.testing.assert_array_equal(there.numpy(), F32)
    there.update_inplace(elsewhere.full((3, 2), 7.0, requires_grad=True))
    np.testing.assert_array_equal(there.numpy(), np.full((2, 3), 7))
    assert there.data_ptr() == address
    target = OrtValue(np.zeros((2, 3), np.float32))
    sardonyx.copy_tensors([there], [target])
    np.testing.assert_array_equal(target.numpy(), np.full((2, 3), 7))
    with pytest.raises(ValueFault, match=r"tensor.float., and the new value is float64"):
        there.update_inplace(elsewhere.zeros(2, 3, dtype=elsewhere.float64))
    with pytest.raises(ValueFault, match="24 bytes, and the new value has 20"):
        there.update_inplace(elsewhere.zeros(5))
    with pytest.raises(TypeError, match="from another or from an array"):
        there.update_inplace([1.0])


def test_memory_is_chosen_by_its_description(elsewhere: Any) -> None:
    kind = OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    for name, is_device in (("Cuda", True), ("CudaPinned", False), ("Cpu", False)):
        info = OrtMemoryInfo(name, kind, 0, OrtMemType.DEFAULT)
        made = OrtValue.ortvalue_from_shape_and_type_for_memory_info([2], np.float32, info)
        assert isinstance(made._value, elsewhere.Tensor) is is_device


def test_dlpack_of_a_value_on_a_device(elsewhere: Any) -> None:
    there = OrtValue.ortvalue_from_numpy(F32, "cuda")
    taken = elsewhere.from_dlpack(there)
    assert taken.data_ptr() == there.data_ptr()
    assert elsewhere.utils.dlpack.from_dlpack(there.to_dlpack()).data_ptr() == there.data_ptr()
    assert there.__dlpack_device__() == (1, 0)
    vector = OrtValueVector([there])
    assert elsewhere.from_dlpack(vector.dlpack_at(0)).data_ptr() == there.data_ptr()
    again = pickle.loads(pickle.dumps(there))
    np.testing.assert_array_equal(again.numpy(), F32)


def test_tensors_on_other_devices_are_kept() -> None:
    """One of torch's meta device has no data: whatever reads some fails."""
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16, device="meta", requires_grad=True)
    for value in (OrtValue(tensor), OrtValue.from_dlpack(tensor)):
        assert value.device_name() == "meta"
        assert value.data_type() == "tensor(bfloat16)"
        assert value.shape() == [2, 3]
        assert value.tensor_size_in_bytes() == 12
        assert repr(value) == "<OrtValue tensor(bfloat16) [2, 3] on meta>"
    flags = OrtValue.from_dlpack(torch.zeros(2, dtype=torch.uint8, device="meta"), True)
    assert flags.data_type() == "tensor(bool)"
    with pytest.raises(ValueFault, match="not contiguous"):
        OrtValue.from_dlpack(torch.zeros(4, 4, device="meta")[:, ::2])


WRONG: list[tuple[Any, str]] = [
    (lambda: OrtValue.ortvalue_from_shape_and_type([2], np.float32, "cuda", 99), "cuda:99"),
    (lambda: OrtValue.ortvalue_from_shape_and_type([2], np.float32, "mps", 99), "mps:99"),
    (lambda: OrtValue.ortvalue_from_numpy(F32.astype(ml_dtypes.float8_e8m0fnu), "cuda", 99),
     "no tensors of float8e8m0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), WRONG, ids=[m for _, m in WRONG])
def test_values_that_devices_refuse(call: Any, match: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueFault, match=match):
        call()


def test_device_memory_is_imported_by_address(elsewhere: Any) -> None:
    """The array interface by which torch imports memory, which it cannot do without a GPU."""
    from sardonyx.providers.torch.device_tensors import _Memory

    told = _Memory(4096, 24, None).__cuda_array_interface__
    assert told == {
        "shape": (24,), "typestr": "|u1", "data": (4096, False), "strides": None, "version": 3,
    }  # fmt: skip
    binding = sardonyx.InferenceSession(parser.parse_model(ADD)).io_binding()
    with pytest.raises(ValueFault, match="cannot be imported by its address"):
        binding.bind_input("x", "mps", 0, np.float32, [2, 3], 4096)
    with pytest.raises(ValueFault, match="multiple of 4"):
        binding.bind_output("y", "cuda", 0, np.float32, [2, 3], 4097)


def test_outputs_go_to_the_device_that_they_are_bound_to(elsewhere: Any) -> None:
    session = sardonyx.InferenceSession(parser.parse_model(ADD))
    there = OrtValue.ortvalue_from_numpy(F32, "cuda")
    (made,) = session.run(None, {"x": there})
    np.testing.assert_array_equal(made, 2 * F32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", there)
    binding.bind_output("y", "cuda", 0)
    session.run_with_iobinding(binding)
    (out,) = binding.get_outputs()
    assert isinstance(out._value, elsewhere.Tensor)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * F32)
    target = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, "cuda")
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), 2 * F32)
    binding.synchronize_inputs()
    binding.synchronize_outputs()
    fetches = OrtValueVector()
    device = OrtDevice.make("cuda", 0)
    session.run_with_ortvaluevector(None, ["x"], OrtValueVector([there]), ["y"], fetches, [device])
    assert isinstance(fetches[0]._value, elsewhere.Tensor)
