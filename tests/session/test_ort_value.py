"""OrtValues over numpy, DLPack and raw bits; OrtValueVector; devices."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

import sardonyx
from sardonyx import OrtDevice, OrtValue
from sardonyx.capi.onnxruntime_pybind11_state import OrtValueVector, is_dlpack_uint8_tensor
from sardonyx.errors import ValueFault

F32 = np.arange(6, dtype=np.float32).reshape(2, 3)
# numpy type, ONNX number
RAW = [
    (np.uint16, 16), (np.uint8, 17), (np.uint8, 18), (np.uint8, 19), (np.uint8, 20),
    (np.uint8, 21), (np.int8, 22), (np.uint8, 23), (np.uint8, 25), (np.float32, 1),
    (np.int32, 1), (np.uint8, 9),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "number"), RAW)
def test_raw_bits_are_interpreted_as_in_onnxruntime(dtype: Any, number: int) -> None:
    data = np.arange(8).astype(dtype).reshape(2, 4)
    ours = OrtValue.ortvalue_from_numpy_with_onnx_type(data, number)
    theirs = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(data, number)
    for name in ("shape", "data_type", "element_type", "tensor_size_in_bytes", "data_ptr"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name


def test_types_under_8_bits_are_packed() -> None:
    array = np.array([[-8, 7, 3], [0, -1, 2]]).astype(ml_dtypes.int4)
    value = OrtValue(array)
    assert value.tensor_size_in_bytes() == 3
    assert value.shape() == [2, 3]
    np.testing.assert_array_equal(value.numpy().astype(int), array.astype(int))
    packed = np.array([0x78, 0x03, 0x2F, 9, 9, 9], np.uint8).reshape(2, 3)
    same = OrtValue.ortvalue_from_numpy_with_onnx_type(packed, 22)
    np.testing.assert_array_equal(same.numpy().astype(int), array.astype(int))


WRONG = [
    (lambda: OrtValue.ortvalue_from_numpy(["a"]), "list"),
    (lambda: OrtValue.ortvalue_from_numpy(np.array(["a"])), "<U1"),
    (lambda: OrtValue.ortvalue_from_numpy(np.zeros(2, "M8[s]")), "datetime64"),
    (lambda: OrtValue.ortvalue_from_numpy(F32, "cuda", 99), "cuda:99"),
    (lambda: OrtValue.ortvalue_from_numpy(F32, "npu"), "values on npu are not supported"),
    (lambda: OrtValue.ortvalue_from_numpy(F32, "abacus"), "Unsupported device type: abacus"),
    (lambda: OrtValue.ortvalue_from_numpy_with_onnx_type(F32, 16), "4 bytes"),
    (lambda: OrtValue.ortvalue_from_numpy_with_onnx_type(F32, 99), "not an element type"),
    (lambda: OrtValue.ortvalue_from_shape_and_type([2, -1], 1), "0 or more"),
    (lambda: OrtValue.ortvalue_from_shape_and_type([2], 8), "strings"),
    (lambda: OrtValue.ortvalue_from_shape_and_type([2], "x"), "not an element type"),
    (lambda: OrtValue([F32]).shape(), r"not a tensor: seq\(tensor\(float\)\)"),
    (lambda: OrtValue(None).numpy(), "not a tensor"),
    (lambda: OrtValue(F32).as_sparse_tensor(), "not a sparse tensor"),
    (lambda: OrtValue(F32).update_inplace(np.zeros(5, np.float32)), "the new value has 20"),
    (lambda: OrtValue.from_dlpack(object()), "not a DLPack tensor"),
    (lambda: OrtValue.from_dlpack(np.zeros((4, 4))[:, ::2]), "not contiguous"),
    (lambda: OrtValue(np.array(["a"], object)).__dlpack__(), "no tensors of string"),
    (lambda: sardonyx.copy_tensors([OrtValue(F32)], []), "1 tensors cannot be copied into 0"),
    (lambda: sardonyx.copy_tensors([OrtValue(F32)], [OrtValue(F32.T.copy())]), r"\[3, 2\]"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), WRONG, ids=[m for _, m in WRONG])
def test_what_cannot_be_a_value_is_refused(call: Any, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        call()


def test_memory_is_shared() -> None:
    array = F32.copy()
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.data_ptr() == array.ctypes.data == value.numpy().ctypes.data
    value.update_inplace(np.ones((2, 3), np.float32))
    assert (array == 1).all()
    value.update_inplace(OrtValue(np.full((3, 2), 7, np.float32)))
    assert (array == 7).all()
    with pytest.raises(ValueFault, match=r"tensor.float., and the new value is float64"):
        value.update_inplace(np.full((2, 3), 5.0))  # whose bits onnxruntime takes as they are
    half = OrtValue(np.zeros(2, ml_dtypes.bfloat16))
    half.update_inplace(np.array([0x3FC0, 0], np.uint16))
    assert half.numpy().tolist() == [1.5, 0]
    assert np.asarray(value).ctypes.data == array.ctypes.data
    assert np.array(value, np.float64).dtype == np.float64
    assert np.array(value, copy=True).ctypes.data != array.ctypes.data
    array.flags.writeable = False
    with pytest.raises(ValueFault, match="read-only"):
        value.update_inplace(F32)


def test_dlpack_both_ways_without_a_copy() -> None:
    array = F32.copy()
    value = OrtValue.from_dlpack(array)
    assert value.data_ptr() == array.ctypes.data
    assert np.from_dlpack(value).ctypes.data == array.ctypes.data  # type: ignore[arg-type]
    assert value.__dlpack_device__() == (1, 0)
    for other in (
        np.array([True, False]),
        np.zeros((0, 3)),
        np.array(3),
        np.zeros(3, np.complex64),
    ):
        back = np.from_dlpack(OrtValue.from_dlpack(other))  # type: ignore[arg-type]
        assert back.dtype == other.dtype
        np.testing.assert_array_equal(back, other)
    kept = np.from_dlpack(OrtValue.ortvalue_from_shape_and_type([4], 1))  # type: ignore[arg-type]
    assert (kept == 0).all()


def test_dlpack_with_torch() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    value = OrtValue.from_dlpack(tensor)
    assert value.data_ptr() == tensor.data_ptr()
    assert torch.from_dlpack(value).data_ptr() == tensor.data_ptr()
    half = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    value = OrtValue.from_dlpack(half)
    assert value.data_type() == "tensor(bfloat16)"
    np.testing.assert_array_equal(value.numpy().astype(np.float32), [1.5, -2])
    assert torch.equal(torch.from_dlpack(value), half)
    del half, tensor
    np.testing.assert_array_equal(value.numpy().astype(np.float32), [1.5, -2])
    flags = torch.tensor([True, False])
    assert torch.equal(torch.from_dlpack(OrtValue.from_dlpack(flags)), flags)
    assert torch.utils.dlpack.from_dlpack(value.to_dlpack()).dtype == torch.bfloat16


def test_lists_of_values() -> None:
    values = OrtValueVector()
    values.reserve(3)
    values.push_back(OrtValue(F32))
    values.push_back(np.array([1, 0], np.uint8), True)
    values.push_back_batch(
        [F32], [F32.ctypes.data], [np.float32], [[3, 2]], [OrtDevice.make("cpu", 0)]
    )
    values.shrink_to_fit()
    assert len(values) == 3
    assert [v.shape() for v in values] == [[2, 3], [2], [3, 2]]
    assert values.bool_tensor_indices() == [1]
    assert values.element_type_at(0) == 1
    assert values[2].data_ptr() == F32.ctypes.data
    assert len(values.to_dlpacks(None)) == 3
    assert values.to_dlpacks(lambda capsule: 5) == [5, 5, 5]
    assert not is_dlpack_uint8_tensor(values.dlpack_at(0))
    with pytest.raises(IndexError):
        values[3]
    target = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    sardonyx.copy_tensors([values[0]], [target])
    np.testing.assert_array_equal(target.numpy(), F32)


def test_values_that_are_not_tensors() -> None:
    types = {
        "seq(tensor(float))": [F32],
        "map(string,tensor(float))": {"a": np.float32(1)},
        "map(int64,tensor(int64))": {3: np.int64(4)},
        "": None,
    }
    for text, value in types.items():
        made = OrtValue(value)
        assert made.data_type() == text
        assert made.has_value() == (value is not None)
        assert made.is_tensor_sequence() == isinstance(value, list)
        assert not made.is_tensor()


def test_values_pickle() -> None:
    for array in (F32, np.arange(3).astype(ml_dtypes.int4), np.ones(2, ml_dtypes.bfloat16)):
        again = pickle.loads(pickle.dumps(OrtValue(array)))
        np.testing.assert_array_equal(again.numpy().astype(int), array.astype(int))


@pytest.mark.parametrize("name", ["cpu", "cuda", "dml", "cann", "webgpu", "gpu", "npu"])
def test_devices_are_numbered_as_in_onnxruntime(name: str) -> None:
    ours, theirs = OrtDevice.make(name, 1), onnxruntime.OrtDevice.make(name, 1)
    for method in ("device_id", "device_type", "device_vendor_id", "device_mem_type"):
        assert getattr(ours, method)() == getattr(theirs, method)(), method
    assert OrtDevice(ours) == ours == OrtDevice(ours.device_type(), 0, ours.device_vendor_id(), 1)
    kinds = onnxruntime.capi.onnxruntime_pybind11_state.OrtDevice
    for kind in ("cann", "cpu", "cuda", "default_memory", "dml", "fpga", "gpu", "npu", "webgpu"):
        assert getattr(OrtDevice, kind)() == getattr(kinds, kind)()


@pytest.mark.parametrize("shape", [(-1,), (2**62, 4), (2**62, 4, 0), (1,) * 65])
def test_shapes_that_no_tensor_has(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueFault, match="shape"):
        OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
