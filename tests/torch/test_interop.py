"""Sessions over torch tensors: as feeds, bindings and results, without copies."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import sardonyx
from sardonyx import OrtValue, RunOptions
from sardonyx.errors import InvalidArgument
from tests.decoder import Decoder

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 - torch may be missing

from sardonyx.providers.torch import Torch  # noqa: E402
from sardonyx.providers.torch import device_tensors as values  # noqa: E402

TORCH = [("TorchExecutionProvider", {"device": "cpu"})]
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3] x, float[n,3] y) => (float[n,3] z, float[n,3] w, float[m,3] v)
{ z = Add(x, y)  t = Mul(x, y)  w = Softmax(t)  v = Concat<axis=0>(x, y) }"""
VIEWS = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,3] x, int64[1] end) => (float[3,2] y, float[k,2] part, float[2,3] z)
<float[4,2] c = {1,2,3,4,5,6,7,8}, int64[1] zero = {0}>
{ y = Transpose(x) part = Slice(c, zero, end) z = Add(x, x) }"""
MIXED = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,3] x) => (float[2,3] y, string[2] s) <string[2] c = {"a", "b"}>
{ y = Softmax(x) s = Identity(c) }"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.full((2, 3), 2, np.float32)


def session_of(text: str, providers: Any = TORCH) -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(parser.parse_model(text), providers=providers)


@pytest.fixture(scope="module")
def session() -> sardonyx.InferenceSession:
    made = session_of(MODEL)
    assert {i.device for i in made._compiled.program.inputs} == {"torch-cpu"}
    return made


@pytest.fixture
def on_device() -> RunOptions:
    made = RunOptions()
    made.add_run_config_entry("sardonyx.outputs", "device")
    return made


class Foreign:
    """Another library's tensor, known by DLPack alone."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **wishes: Any) -> Any:
        return self._tensor.__dlpack__(**wishes)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


FED = {
    "tensor": torch.from_numpy,
    "with gradient": lambda a: torch.from_numpy(a).requires_grad_(),
    "parameter": lambda a: torch.nn.Parameter(torch.from_numpy(a)),
    "strided": lambda a: torch.from_numpy(a.T.copy()).T,
    "negated": lambda a: torch.view_as_complex(torch.from_numpy(np.stack([a, -a], -1))).conj().imag,
    "foreign": lambda a: Foreign(torch.from_numpy(a)),
    "OrtValue": lambda a: OrtValue(torch.from_numpy(a)),
    "list": lambda a: a.tolist(),
}


@pytest.mark.parametrize("providers", [TORCH, None], ids=["torch", "cpu"])
@pytest.mark.parametrize("kind", FED)
def test_tensors_are_fed(kind: str, providers: Any) -> None:
    session = session_of(MODEL, providers)
    made = session.run(None, {"x": FED[kind](X), "y": Y})
    assert all(type(m) is np.ndarray for m in made)
    for got, wanted in zip(made, session.run(None, {"x": X, "y": Y}), strict=True):
        np.testing.assert_array_equal(got, wanted)


WRONG = [
    (lambda: torch.zeros(2, 3, dtype=torch.float64), r"Actual: .tensor.double..*tensor.float"),
    (lambda: torch.zeros(2, 3).to_sparse(), "layout"),
    (lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 1.0, 0, torch.qint8), "element type"),
    (lambda: torch.zeros(2), "rank 1"),
    (lambda: torch.zeros(2, 4), "4 in dim 1"),
    (lambda: torch.zeros(2, 3, device="meta"), "on meta has no memory"),
    (lambda: resized(torch.zeros(2, 3), 0), "on cpu has no memory"),
    (lambda: resized(torch.zeros(4, 3)[2:], 24), "on cpu has no memory"),
    (lambda: torch.nested.nested_tensor([torch.zeros(3)] * 2), "nested tensor"),
    (lambda: fake(2, 3), "FakeTensor stands for a tensor"),
]


def resized(tensor: torch.Tensor, n_bytes: int) -> torch.Tensor:
    tensor.untyped_storage().resize_(n_bytes)
    return tensor


def fake(*shape: int) -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(*shape)


@pytest.mark.parametrize("providers", [TORCH, None], ids=["torch", "cpu"])
@pytest.mark.parametrize(("make", "match"), WRONG, ids=[m for _, m in WRONG])
@pytest.mark.filterwarnings("ignore:.*quantized")
@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_tensors_that_cannot_be_fed(make: Any, match: str, providers: Any) -> None:
    with pytest.raises(InvalidArgument, match=match):
        session_of(MODEL, providers).run(None, {"x": make(), "y": Y})


def test_tensors_are_read_in_place(
    session: Any, on_device: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what is fed nor what stays is copied."""
    monkeypatch.setattr("sardonyx.providers.torch.Torch.to_device", None)
    monkeypatch.setattr("sardonyx.providers.torch.Torch.to_host", None)
    monkeypatch.setattr(values, "to_arrays", None)
    (made,) = session.run(["z"], {"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, on_device)
    np.testing.assert_array_equal(made.numpy(), X + Y)


def test_a_loop_stays_on_the_device(session: Any, on_device: RunOptions) -> None:
    x = torch.from_numpy(X.copy())
    for _ in range(3):
        (x,) = session.run(["z"], {"x": x, "y": torch.from_numpy(Y)}, on_device)
        assert isinstance(x, torch.Tensor)
    np.testing.assert_array_equal(x.numpy(), X + 3 * Y)


@pytest.mark.parametrize("providers", [TORCH, None], ids=["torch", "cpu"])
def test_outputs_as_tensors_where_torch_has_their_type(
    providers: Any, on_device: RunOptions
) -> None:
    y, s = session_of(MIXED, providers).run(None, {"x": X}, on_device)
    assert isinstance(y, torch.Tensor)
    assert s.tolist() == ["a", "b"]
    on_device.add_run_config_entry("sardonyx.outputs", "abacus")
    with pytest.raises(InvalidArgument, match="numpy, device, got 'abacus'"):
        session_of(MIXED, providers).run(None, {"x": X}, on_device)


def test_outputs_do_not_alias_inputs_or_constants(on_device: RunOptions) -> None:
    """Views of inputs and of constants are copied; the rest is not."""
    session, x = session_of(VIEWS), torch.from_numpy(X.copy())
    feed = {"x": x, "end": np.array([3])}
    first = session.run(None, feed, on_device)
    for tensor in first:
        tensor.fill_(-1)
    np.testing.assert_array_equal(x.numpy(), X)
    y, part, z = session.run(None, feed, on_device)
    np.testing.assert_array_equal(y.numpy(), X.T)
    np.testing.assert_array_equal(part.numpy(), [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(z.numpy(), 2 * X)
    arrays = session.run(None, feed)
    for array in arrays:
        array[:] = -1
    np.testing.assert_array_equal(session.run(["part"], feed)[0], [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(x.numpy(), X)


def test_values_and_bindings(session: Any) -> None:
    x, z = X.copy(), OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    (made,) = session.run_with_ort_values(["z"], {"x": OrtValue(x), "y": OrtValue(Y)})
    np.testing.assert_array_equal(made.numpy(), X + Y)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", OrtValue(x))
    binding.bind_cpu_input("y", Y)
    binding.bind_ortvalue_output("z", z)
    binding.bind_output("w")
    for step in range(3):
        x[:] = step
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(z.numpy(), step + Y)
    binding.synchronize_inputs()
    binding.synchronize_outputs()
    assert binding.get_outputs()[0].data_ptr() == z.data_ptr()
    w = binding.copy_outputs_to_cpu()[1]
    np.testing.assert_allclose(w, np.full((2, 3), 1 / 3), rtol=1e-6)


def test_bound_outputs_are_written_by_the_run(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sardonyx.session.io_binding._copy", None)
    z = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("y", Y)
    binding.bind_ortvalue_output("z", z)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(z.numpy(), X + Y)


def test_an_output_bound_over_an_input(session: Any) -> None:
    x = X.copy()
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("y", Y)
    binding.bind_ortvalue_output("z", OrtValue(x))
    binding.bind_output("v")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(x, X + Y)
    np.testing.assert_array_equal(binding.get_outputs()[1].numpy(), np.concatenate([X, Y]))


def decoder() -> Any:
    """One step of attention over caches of 8 rows."""
    tensor = helper.make_tensor_value_info
    cache = [1, 1, "m", 4]
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "lengths", "total"],
        ["y", "k_now", "v_now"],
        domain="com.microsoft",
        num_heads=2,
        kv_num_heads=1,
    )
    f32, i32 = TensorProto.FLOAT, TensorProto.INT32
    graph = helper.make_graph(
        [node],
        "g",
        [tensor("q", f32, [1, "s", 8]),
         tensor("k", f32, [1, "s", 4]), tensor("v", f32, [1, "s", 4]),
         tensor("past_k", f32, cache), tensor("past_v", f32, cache),
         tensor("lengths", i32, [1]), tensor("total", i32, [1])],
        [tensor("y", f32, [1, "s", 8]), tensor("k_now", f32, cache), tensor("v_now", f32, cache)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_past_and_present_in_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new rows are written into it; nothing of it is copied."""
    monkeypatch.setattr("sardonyx.session.io_binding._copy", None)
    session = sardonyx.InferenceSession(decoder(), providers=TORCH)
    plain = sardonyx.InferenceSession(decoder())
    rng = np.random.default_rng(7)
    caches = {n: np.zeros((1, 1, 8, 4), np.float32) for n in ("k", "v")}
    fed_back = {n: c.copy() for n, c in caches.items()}
    for step in range(3):
        sizes = {"q": 8, "k": 4, "v": 4}
        feed = {n: rng.standard_normal((1, 1, s), np.float32) for n, s in sizes.items()}
        feed["lengths"] = np.array([step], np.int32)
        feed["total"] = np.array([step + 1], np.int32)
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for name, cache in caches.items():
            binding.bind_ortvalue_input(f"past_{name}", OrtValue(cache))
            binding.bind_ortvalue_output(f"{name}_now", OrtValue(cache))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        past = {f"past_{n}": c for n, c in fed_back.items()}
        y, fed_back["k"], fed_back["v"] = plain.run(None, {**feed, **past})
        np.testing.assert_allclose(binding.get_outputs()[2].numpy(), y, rtol=1e-5, atol=1e-6)
        for name, cache in caches.items():
            np.testing.assert_array_equal(cache, fed_back[name])


def test_a_cache_that_is_too_short_is_not_written(session: Any) -> None:
    session = sardonyx.InferenceSession(decoder(), providers=TORCH)
    cache, rows = np.zeros((1, 1, 2, 4), np.float32), np.ones((1, 1, 4), np.float32)
    binding = session.io_binding()
    feed = {"q": np.ones((1, 1, 8), np.float32), "k": rows, "v": rows}
    feed |= {"lengths": np.array([2], np.int32), "total": np.array([3], np.int32)}
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    for name in "kv":
        binding.bind_cpu_input(f"past_{name}", cache)
        binding.bind_ortvalue_output(f"{name}_now", OrtValue(cache))
    with pytest.raises(RuntimeError, match=r"k_now .*\[1, 1, 3, 4\].*\[1, 1, 2, 4\]"):
        session.run_with_iobinding(binding)
    assert not cache.any()


def test_memory_infos(session: Any) -> None:
    assert {m.name for m in session.get_input_memory_infos()} == {"Cpu"}
    assert [d.ep_name for d in session.get_input_epdevices()] == ["CPUExecutionProvider"] * 2
    assert len(session.get_output_memory_infos()) == 3


class Replayer:
    """Stands for CUDA's graphs: what was recorded is called again, into the same memory."""

    def __init__(self) -> None:
        self.n_recorded = self.n_replayed = 0

    def record(self, call: Any) -> Any:
        outputs = call()
        self.n_recorded += 1

        def replay() -> None:
            self.n_replayed += 1
            for old, new in zip(outputs, call(), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        return outputs, replay

    def ordered(self) -> Any:
        return contextlib.nullcontext()


@pytest.fixture
def replayer(monkeypatch: pytest.MonkeyPatch) -> Replayer:
    made, begin = Replayer(), Torch.__init__

    def init(self: Any, *args: Any) -> None:
        begin(self, *args)
        self.recorder = made

    monkeypatch.setattr(Torch, "__init__", init)
    return made


RECORDED = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3] x, float[n,3] y) => (float[n,3] z, float[3,n] v, int64[2] s)
{ t = Mul(x, y)  z = Softmax(t)  v = Transpose(x)  s = Shape(z) }"""


def test_outputs_of_captured_runs_are_copies(replayer: Replayer) -> None:
    session, plain = session_of(RECORDED), session_of(RECORDED, None)
    kept = []
    for step in range(4):
        feed = {"x": X + step, "y": Y}
        kept.append(session.run(None, feed))
        for made, wanted in zip(kept[-1], plain.run(None, feed), strict=True):
            np.testing.assert_allclose(made, wanted, rtol=1e-6)
    assert (replayer.n_recorded, replayer.n_replayed) == (1, 3)
    np.testing.assert_array_equal(kept[1][1], (X + 1).T)
    session.release_captured_graph(0)
    options = RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")
    session.run(None, feed, options)
    session.run(None, feed)
    assert replayer.n_recorded == 1
    session.run(None, feed)
    assert replayer.n_recorded == 2
    options.add_run_config_entry("gpu_graph_id", "first")
    with pytest.raises(InvalidArgument, match="gpu_graph_id must be a number"):
        session.run(None, feed, options)


def test_a_region_that_cannot_be_captured_runs_without_a_graph(
    replayer: Replayer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def record(call: Any) -> Any:
        tries.append(call)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(replayer, "record", record)
    session, plain = session_of(RECORDED), session_of(RECORDED, None)
    for step in range(4):
        feed = {"x": X + step, "y": Y}
        for made, wanted in zip(session.run(None, feed), plain.run(None, feed), strict=True):
            np.testing.assert_allclose(made, wanted, rtol=1e-6)
    assert len(tries) == 1
    assert "cannot be captured" in caplog.text


def test_captured_runs_read_and_write_bound_memory(replayer: Replayer) -> None:
    session = session_of(RECORDED)
    x, z = X.copy(), np.zeros((2, 3), np.float32)
    binding = session.io_binding()
    for name, array in (("x", x), ("y", Y)):
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_output("z", OrtValue(z))
    binding.bind_output("v")
    for step in range(4):
        x[:] = X * step
        session.run_with_iobinding(binding)
        wanted = torch.softmax(torch.from_numpy(X * step * Y), -1)
        np.testing.assert_allclose(z, wanted, rtol=1e-6)
        v = binding.get_outputs()[1].numpy()
        np.testing.assert_array_equal(v, x.T)
        v[:] = -1
    np.testing.assert_array_equal(x, X * 3)
    assert (replayer.n_recorded, replayer.n_replayed) == (1, 3)
    binding.bind_ortvalue_output("z", OrtValue(x))  # which is read as well
    for step in range(3):
        x[:] = X + step
        session.run_with_iobinding(binding)
        wanted = torch.softmax(torch.from_numpy((X + step) * Y), -1)
        np.testing.assert_allclose(x, wanted, rtol=1e-6)


def test_a_place_of_another_shape_is_refused(replayer: Replayer) -> None:
    session = session_of(RECORDED)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X[:1])
    binding.bind_cpu_input("y", Y[:1])
    binding.bind_ortvalue_output("z", OrtValue(np.zeros((2, 3), np.float32)))
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"\[1, 3\] in this run, .*\[2, 3\]"):
            session.run_with_iobinding(binding)


def test_decoding_in_static_buffers_is_one_captured_graph(
    replayer: Replayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches of full length are fed and written in place; the mask has their length, too."""
    monkeypatch.setattr("sardonyx.session.io_binding._copy", None)
    model = Decoder("qoperator").model()
    session = sardonyx.InferenceSession(model, providers=TORCH)
    plain = sardonyx.InferenceSession(model)
    names = [i.name for i in session.get_inputs() if i.name.startswith("past")]
    caches = {name: np.zeros((1, 2, 16, 16), np.float32) for name in names}
    past = {name: cache[:, :, :0] for name, cache in caches.items()}
    token, mask = np.zeros((1, 1), np.int64), np.zeros((1, 16), np.int64)
    binding = session.io_binding()
    binding.bind_output("logits")
    for name, array in {"input_ids": token, "attention_mask": mask, **caches}.items():
        binding.bind_ortvalue_input(name, OrtValue(array))
    for name, cache in caches.items():
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), OrtValue(cache))
    for step in range(1, 5):
        token[:], mask[:, :step] = 7 * step, 1
        session.run_with_iobinding(binding)
        feed = {"input_ids": token, "attention_mask": mask[:, :step], **past}
        logits, *present = plain.run(None, feed)
        past = dict(zip(names, present, strict=True))
        made = binding.get_outputs()[0].numpy()
        np.testing.assert_allclose(made, logits, rtol=1e-4, atol=1e-4)
        for name, cache in caches.items():
            np.testing.assert_allclose(cache[:, :, :step], past[name], rtol=1e-4, atol=1e-4)
            assert not cache[:, :, step:].any()
    assert (replayer.n_recorded, replayer.n_replayed) == (1, 3)
