"""Values in the memory of a GPU: what torch's CPU device cannot stand for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx import OrtDevice, OrtValue, RunOptions
from sardonyx.capi.onnxruntime_pybind11_state import OrtValueVector
from tests.decoder import Decoder

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3] x, float[n,3] y) => (float[n,3] z, float[3,n] v)
{ t = Mul(x, y)  z = Softmax(t)  v = Transpose(x) }"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.full((2, 3), 2, np.float32)
KINDS: list[Any] = [
    X, X.astype(np.float16), X.astype(ml_dtypes.bfloat16), X.astype(ml_dtypes.float8_e4m3fn),
    X.astype(np.uint16), X > 2, X.astype(np.complex64), np.array(3, np.int64), np.zeros((0, 2)),
    np.array([-8, 7, 3]).astype(ml_dtypes.int4),
]  # fmt: skip


@pytest.fixture(scope="module")
def session() -> sardonyx.InferenceSession:
    made = sardonyx.InferenceSession(parser.parse_model(MODEL), providers=CUDA)
    assert {i.device for i in made._compiled.program.inputs} == {"cuda:0"}
    return made


@pytest.mark.parametrize("array", KINDS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_values(array: Any) -> None:
    value = OrtValue.ortvalue_from_numpy(array, "cuda", 0)
    assert value.device_name() == "cuda"
    assert value.numpy().tobytes() == array.tobytes()
    zeros = OrtValue.ortvalue_from_shape_and_type(array.shape, value.element_type(), "cuda")
    zeros.update_inplace(value)
    assert zeros.numpy().tobytes() == array.tobytes()
    back = OrtValue(np.zeros_like(array))
    back.update_inplace(value)
    assert back.numpy().tobytes() == array.tobytes()


def test_dlpack_without_a_copy() -> None:
    tensor = torch.arange(6, dtype=torch.float32, device="cuda")
    for given in (tensor, tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))):
        value = OrtValue.from_dlpack(given)
        assert value.__dlpack_device__() == (2, 0)
        assert value.data_ptr() == tensor.data_ptr()
        assert torch.from_dlpack(value).data_ptr() == tensor.data_ptr()


def test_runs(session: Any) -> None:
    feed = {"x": torch.from_numpy(X).cuda(), "y": torch.from_numpy(Y)}
    wanted = torch.softmax(torch.from_numpy(X * Y), -1).numpy()
    z, v = session.run(None, feed)
    np.testing.assert_allclose(z, wanted, rtol=1e-5)
    np.testing.assert_array_equal(v, X.T)
    options = RunOptions()
    options.add_run_config_entry("sardonyx.outputs", "device")
    z, v = session.run(None, feed, options)
    assert z.is_cuda
    v.fill_(-1)
    np.testing.assert_array_equal(feed["x"].cpu().numpy(), X)
    (value,) = session.run_with_ort_values(["z"], {n: OrtValue(t) for n, t in feed.items()})
    assert value.device_name() == "cuda"
    np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5)
    assert {m.name for m in session.get_input_memory_infos()} == {"Cuda"}


def test_memory_by_its_address(session: Any) -> None:
    x, y, z = (torch.from_numpy(a).cuda() for a in (X, Y, np.zeros_like(X)))
    binding = session.io_binding()
    for name, tensor in (("x", x), ("y", y)):
        binding.bind_input(name, "cuda", 0, np.float32, tensor.shape, tensor.data_ptr())
    binding.bind_output("z", "cuda", 0, np.float32, z.shape, z.data_ptr())
    binding.bind_output("v", "cuda")
    for step in range(3):
        x.copy_(torch.from_numpy(X + step))
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(z.cpu(), torch.softmax((x * y).cpu(), -1), rtol=1e-5)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], (X + step).T)
    assert [o.device_name() for o in binding.get_outputs()] == ["cuda", "cuda"]


def test_streams_and_devices() -> None:
    cpu, gpu, *_ = sardonyx.get_ep_devices()
    assert (cpu.ep_name, gpu.ep_name) == (CUDA[1], CUDA[0])
    assert gpu.device.metadata["name"] == torch.cuda.get_device_name(0)
    stream = gpu.create_sync_stream()
    assert stream.get_handle()
    source = OrtValue.ortvalue_from_numpy(X, "cuda")
    target = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, "cuda")
    sardonyx.copy_tensors([source], [target], stream)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(target.numpy(), X)
    values = OrtValueVector()
    tensor = torch.from_numpy(X).cuda()
    device = OrtDevice.make("cuda", 0)
    values.push_back_batch([tensor], [tensor.data_ptr()], [np.float32], [[2, 3]], [device])
    np.testing.assert_array_equal(values[0].numpy(), X)


def test_a_user_stream() -> None:
    stream = torch.cuda.Stream()
    options = {"user_compute_stream": str(stream.cuda_stream)}
    session = sardonyx.InferenceSession(
        parser.parse_model(MODEL), providers=[("CUDAExecutionProvider", options)]
    )
    for step in range(5):
        _, v = session.run(None, {"x": X + step, "y": Y})
        np.testing.assert_array_equal(v, (X + step).T)


@pytest.mark.parametrize("records", ["0", "1"])
def test_decoding_in_static_buffers(records: str) -> None:
    model = Decoder("qoperator").model()
    providers = [("CUDAExecutionProvider", {"enable_cuda_graph": records, "use_tf32": "0"})]
    session = sardonyx.InferenceSession(model, providers=providers)
    plain = sardonyx.InferenceSession(model)
    names = [i.name for i in session.get_inputs() if i.name.startswith("past")]
    shapes = {
        "input_ids": (1, 1),
        "attention_mask": (1, 16),
        **dict.fromkeys(names, (1, 2, 16, 16)),
    }
    binding = session.io_binding()
    binding.bind_output("logits", "cuda")
    values = {}
    for name, shape in shapes.items():
        kind = np.float32 if name in names else np.int64
        value = values[name] = OrtValue.ortvalue_from_shape_and_type(shape, kind, "cuda")
        binding.bind_ortvalue_input(name, value)
        if name in names:
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
    past = {name: np.zeros((1, 2, 0, 16), np.float32) for name in names}
    mask = np.zeros((1, 16), np.int64)
    for step in range(1, 6):
        token, mask[:, :step] = np.full((1, 1), 7 * step), 1
        values["input_ids"].update_inplace(token)
        values["attention_mask"].update_inplace(mask)
        session.run_with_iobinding(binding)
        feed = {"input_ids": token, "attention_mask": mask[:, :step], **past}
        logits, *present = plain.run(None, feed)
        past = dict(zip(names, present, strict=True))
        made = binding.copy_outputs_to_cpu()[0]
        np.testing.assert_allclose(made, logits, rtol=1e-3, atol=1e-3)
        for name in names:
            cache = values[name].numpy()
            np.testing.assert_allclose(cache[:, :, :step], past[name], rtol=1e-3, atol=1e-3)
