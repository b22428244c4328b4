"""Invalid DLPack capsules: an error where it can be detected, and never a crash."""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import sardonyx
from sardonyx import OrtValue
from sardonyx.capi.onnxruntime_pybind11_state import is_dlpack_uint8_tensor
from sardonyx.errors import SardonyxError, ValueFault
from sardonyx.ort.dlpack import is_on_host

FLOAT, INT, BFLOAT = 2, 0, 4
CPU, CUDA, CUDA_HOST = 1, 2, 3


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Unversioned(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
new_capsule.restype = ctypes.py_object
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DATA = np.arange(24, dtype=np.float32)
NAMES = {Unversioned: b"dltensor", Versioned: b"dltensor_versioned"}


class Lie:
    """A capsule whose parts are given one by one. It outlives what is made of it."""

    all: ClassVar[list[Lie]] = []

    def __init__(self, kind: Any = Unversioned, **parts: Any) -> None:
        self.all.append(self)
        self.deleted = 0
        self.deleter = DELETER(self._count)
        dims, strides = parts.pop("dims", (2, 3)), parts.pop("strides", None)
        self.managed = managed = kind()
        for name in ("major", "flags", "deleter"):
            if name in parts:
                setattr(managed, name, parts.pop(name))
            elif name == "deleter":
                managed.deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
            elif name == "major" and kind is Versioned:
                managed.major = 1
        tensor = managed.tensor
        tensor.data, tensor.device = DATA.ctypes.data, CPU
        tensor.code, tensor.bits, tensor.lanes = FLOAT, 32, 1
        self.dims = (ctypes.c_int64 * 128)(*(dims or ()))
        self.strides = (ctypes.c_int64 * 128)(*(strides or ()))
        tensor.rank = len(dims or ())
        tensor.dims = self.dims if dims is not None else None
        tensor.strides = self.strides if strides is not None else None
        for name, value in parts.items():
            setattr(tensor, name, value)
        self.capsule = new_capsule(ctypes.addressof(managed), NAMES[kind], None)

    def _count(self, _: Any) -> None:
        self.deleted += 1


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "negative rank": ({"rank": -1}, "a rank of -1"),
    "rank 100": ({"dims": (1,) * 100}, "a rank of 100"),
    "huge rank": ({"rank": 2**31 - 1}, "a rank of 2147483647"),
    "no shape": ({"dims": None, "rank": 2}, "a rank of 2 and no shape"),
    "negative dim": ({"dims": (2, -3)}, "the size -3 in dim 1"),
    "least dim": ({"dims": (-(2**63), 2)}, "the size -9223372036854775808"),
    "overflow": ({"dims": (2**62, 4)}, "no memory holds"),
    "overflow beside none": ({"dims": (2**62, 4, 0)}, "no memory holds"),
    "overflow to a small one": ({"dims": (2**32, 2**32 + 1)}, "no memory holds"),
    "more than is there": ({"dims": (2**42,)}, "there is no memory at"),
    "negative strides": ({"strides": (-3, -1)}, "not contiguous"),
    "huge strides": ({"strides": (2**62, 2**62)}, "not contiguous"),
    "zero strides": ({"strides": (0, 0)}, "not contiguous"),
    "transposed": ({"strides": (1, 2)}, "not contiguous"),
    "no data": ({"data": None}, "no data"),
    "no data, offset": ({"data": None, "byte_offset": 4096}, "no data"),
    "not mapped": ({"data": 4096}, "there is no memory at 0x1000"),
    "last address": ({"data": 2**64 - 4}, "there is no memory at"),
    "offset": ({"byte_offset": 2**64 - 1}, "a byte_offset of 18446744073709551615"),
    "far offset": ({"byte_offset": 2**46}, "there is no memory at"),
    "lanes": ({"bits": 16, "lanes": 2}, "2 lanes"),
    "no lanes": ({"lanes": 0}, "0 lanes"),
    "no bits": ({"bits": 0}, "code 2 and 0 bits"),
    "12 bits": ({"bits": 12}, "code 2 and 12 bits"),
    "int4": ({"code": INT, "bits": 4}, "code 0 and 4 bits"),
    "code": ({"code": 77}, "code 77 and 32 bits"),
    "bfloat of 32 bits": ({"code": BFLOAT}, "code 4 and 32 bits"),
}


@pytest.mark.parametrize("kind", [Unversioned, Versioned])
@pytest.mark.parametrize("name", LIES)
def test_malformed_tensors_are_refused(name: str, kind: Any) -> None:
    parts, match = LIES[name]
    lie = Lie(kind, **parts)
    with pytest.raises(ValueFault, match=match):
        OrtValue.from_dlpack(lie.capsule)
    assert lie.deleted == 0  # it is still the capsule's
    if match.startswith(("a rank", "the size", "no memory", "no data", "a byte_offset")):
        for look in (is_dlpack_uint8_tensor, is_on_host):
            with pytest.raises(ValueFault, match=match):
                look(lie.capsule)


@pytest.mark.parametrize(
    ("device", "number"), [(CUDA, 0), (CUDA, 99), (0, 0), (-1, 0), (7, 0), (2**31 - 1, -5)]
)
def test_devices_that_are_not_there(device: int, number: int) -> None:
    lie = Lie(device=device, device_number=number)
    assert not is_on_host(lie.capsule)
    with pytest.raises(SardonyxError):
        OrtValue.from_dlpack(lie.capsule)


@pytest.mark.parametrize("major", [0, 2, 2**32 - 1])
def test_versions_that_are_not_known(major: int) -> None:
    with pytest.raises(ValueFault, match=f"it has version {major}.0"):
        OrtValue.from_dlpack(Lie(Versioned, major=major).capsule)


@pytest.mark.parametrize("kind", [Unversioned, Versioned])
@pytest.mark.parametrize("strides", [None, (3, 1)])
def test_a_capsule_is_used_once_and_deleted_once(kind: Any, strides: Any) -> None:
    lie = Lie(kind, strides=strides, byte_offset=8)
    value = OrtValue.from_dlpack(lie.capsule)
    np.testing.assert_array_equal(value.numpy(), DATA[2:8].reshape(2, 3))
    with pytest.raises(ValueFault, match="was consumed"):
        OrtValue.from_dlpack(lie.capsule)
    array = value.numpy()[1:]
    del value
    gc.collect()
    assert lie.deleted == 0  # an array is over its memory
    del array
    gc.collect()
    assert lie.deleted == 1


def test_a_tensor_without_a_deleter_or_without_elements() -> None:
    value = OrtValue.from_dlpack(Lie(deleter=None).capsule)
    assert value.shape() == [2, 3]
    lie = Lie(dims=(2, 0), data=None)
    assert OrtValue.from_dlpack(lie.capsule).numpy().shape == (2, 0)
    gc.collect()
    assert lie.deleted == 1
    assert OrtValue.from_dlpack(Lie(dims=()).capsule).numpy() == DATA[0]
    assert OrtValue.from_dlpack(Lie(dims=None).capsule).numpy() == DATA[0]


def test_memory_that_is_read_only_stays_so() -> None:
    value = OrtValue.from_dlpack(Lie(Versioned, flags=1).capsule)
    assert not value.numpy().flags.writeable
    with pytest.raises(ValueFault, match="read-only"):
        value.update_inplace(np.zeros((2, 3), np.float32))
    frozen = DATA.copy()
    frozen.flags.writeable = False
    again = OrtValue.from_dlpack(frozen)
    assert again.data_ptr() == frozen.ctypes.data
    assert not np.from_dlpack(again).flags.writeable  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="read-only"):
        again.__dlpack__()


def test_unmapped_memory_is_refused() -> None:
    """A hole in the middle of a tensor is found, not only its ends."""
    whole = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    assert OrtValue.from_dlpack(Lie(data=address, dims=(3 * mmap.PAGESIZE // 4,)).capsule)
    libc = ctypes.CDLL(None)
    middle = ctypes.c_void_p(address + mmap.PAGESIZE)
    assert libc.munmap(middle, ctypes.c_size_t(mmap.PAGESIZE)) == 0
    try:
        with pytest.raises(ValueFault, match="there is no memory"):
            OrtValue.from_dlpack(Lie(data=address, dims=(3 * mmap.PAGESIZE // 4,)).capsule)
    finally:  # what the mapping of Python's ends with is all of it
        anywhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap(middle, ctypes.c_size_t(mmap.PAGESIZE), 3, anywhere, -1, ctypes.c_long(0))


class Odd:
    """An object with `__dlpack__` that does what it is told."""

    def __init__(self, give: Callable[[], Any], device: Callable[[], Any] = lambda: (CPU, 0)):
        self.give, self.device = give, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.give()

    def __dlpack_device__(self) -> Any:
        return self.device()


class Old(Odd):
    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.give()


def raises(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (lambda: Odd(raises(RuntimeError("boom"))), "Odd is not a DLPack tensor: .*boom"),
    "raises TypeError": (lambda: Odd(raises(TypeError("boom"))), "boom"),
    "gives None": (lambda: Odd(lambda: None), "not a DLPack tensor: the capsule is None"),
    "gives itself": (lambda: Odd(lambda: DATA), "not a DLPack tensor"),
    "gives another capsule": (
        lambda: Odd(lambda: new_capsule(DATA.ctypes.data, b"other", None)), "holds no tensor"),
    "no device": (lambda: Odd(lambda: 0, lambda: None), "does not tell its device"),
    "a text": (lambda: Odd(lambda: 0, lambda: "cpu"), "does not tell its device"),
    "device raises": (lambda: Odd(lambda: 0, raises(KeyError("x"))), "does not tell its device"),
    "capsule elsewhere": (
        lambda: Odd(lambda: Lie(device=CUDA).capsule), "of the type 2 according to its capsule"),
    "unnamed capsule": (lambda: new_capsule(DATA.ctypes.data, None, None), "holds no tensor"),
    "device elsewhere": (
        lambda: Odd(lambda: Lie().capsule, lambda: (CUDA, 0)), "for torch|not a DLPack|cuda"),
    "elsewhere, and cannot be": (
        lambda: Odd(lambda: Lie(device=CUDA, dims=(-1,)).capsule, lambda: (CUDA, 0)),
        "the size -1|cuda|CUDA"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_objects_that_misbehave(name: str) -> None:
    make, match = ODD[name]
    with pytest.raises(ValueFault, match=match):
        OrtValue.from_dlpack(make())


def test_unversioned_producers_and_interrupts() -> None:
    lie = Lie()
    value = OrtValue.from_dlpack(Old(lambda: lie.capsule))
    np.testing.assert_array_equal(value.numpy(), DATA[:6].reshape(2, 3))
    with pytest.raises(KeyboardInterrupt):
        OrtValue.from_dlpack(Odd(raises(KeyboardInterrupt())))


@pytest.mark.parametrize("device", [CPU, CUDA_HOST])
def test_runs_refuse_malformed_tensors(device: int) -> None:
    import onnx

    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }"""
    session = sardonyx.InferenceSession(onnx.parser.parse_model(text))
    good = Lie(device=device)
    fed = Odd(lambda: good.capsule, lambda: (device, 0))
    np.testing.assert_array_equal(session.run(None, {"x": fed})[0], -DATA[:6].reshape(2, 3))
    for parts in ({"dims": (-1, 3)}, {"rank": 99}, {"data": None}, {"bits": 64}):
        lie = Lie(device=device, **parts)
        odd = Odd(lambda lie=lie: lie.capsule, lambda: (device, 0))  # type: ignore[misc]
        with pytest.raises(SardonyxError):
            session.run(None, {"x": odd})


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_capsules_of_torch_are_inspected_before_use(version: Any) -> None:
    torch = pytest.importorskip("torch")
    capsule = torch.zeros(2).__dlpack__(max_version=version)
    assert is_on_host(capsule)
    assert not is_dlpack_uint8_tensor(capsule)
    assert OrtValue.from_dlpack(capsule).numpy().tolist() == [0, 0]
    with pytest.raises(ValueFault, match="not a DLPack tensor"):
        OrtValue.from_dlpack(capsule)  # which was taken over
