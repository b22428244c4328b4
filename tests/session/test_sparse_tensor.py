"""SparseTensor: COO, CSR and block sparse, validation, and as inputs of sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx import OrtDevice, OrtValue, SparseTensor
from sardonyx.capi import onnxruntime_pybind11_state as capi

CPU = OrtDevice.make("cpu", 0)
VALUES = np.array([1, 2], np.float32)
SHAPE = np.array([3, 4], np.int64)


def both(call: Any) -> tuple[Any, Any]:
    theirs = onnxruntime.OrtDevice.make("cpu", 0)
    return call(SparseTensor, CPU), call(onnxruntime.SparseTensor, theirs)


@pytest.mark.parametrize("indices", [[1, 7], [[0, 1], [1, 3]]], ids=["flat", "rows"])
def test_coo(indices: Any) -> None:
    ours, theirs = both(
        lambda kind, cpu: kind.sparse_coo_from_numpy(SHAPE, VALUES, np.array(indices), cpu)
    )
    for name in ("dense_shape", "data_type", "device_name"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name
    assert int(ours.format()) == int(theirs.format())
    np.testing.assert_array_equal(ours.as_coo_view().indices(), theirs.as_coo_view().indices())
    np.testing.assert_array_equal(ours.values(), theirs.values())
    dense = np.zeros((3, 4), np.float32)
    dense[[0, 1], [1, 3]] = VALUES
    np.testing.assert_array_equal(ours.to_dense(), dense)
    assert ours.values().ctypes.data == VALUES.ctypes.data


def test_csr() -> None:
    ours, theirs = both(
        lambda kind, cpu: kind.sparse_csr_from_numpy(
            SHAPE, VALUES, np.array([1, 3]), np.array([0, 1, 2, 2]), cpu
        )
    )
    assert int(ours.format()) == int(theirs.format())
    view, other = ours.as_csrc_view(), theirs.as_csrc_view()
    np.testing.assert_array_equal(view.inner(), other.inner())
    np.testing.assert_array_equal(view.outer(), other.outer())
    assert ours.to_dense()[1, 3] == 2


def test_block_sparse() -> None:
    values, places = np.ones((2, 2, 2), np.float32), np.array([[0, 1], [1, 0]], np.int32)
    made = SparseTensor.blocksparse_from_numpy([4, 4], values, places, CPU)
    theirs = onnxruntime.capi.onnxruntime_pybind11_state.SparseTensor.blocksparse_from_numpy(
        [4, 4], values, places, onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
    )
    assert made.dense_shape() == theirs.dense_shape()  # whose view of the indices always fails
    np.testing.assert_array_equal(made.as_blocksparse_view().indices(), places)
    assert isinstance(made.get_blocksparse_data(), capi.SparseBlockSparseView)


def coo(shape: Any, values: Any, indices: Any) -> SparseTensor:
    return SparseTensor.sparse_coo_from_numpy(shape, values, np.array(indices), CPU)


def csr(inner: Any, outer: Any) -> SparseTensor:
    return SparseTensor.sparse_csr_from_numpy(SHAPE, VALUES, np.array(inner), np.array(outer), CPU)


WRONG = [
    (lambda: coo(SHAPE, VALUES, [1, 2, 3]), "indices of shape"),
    (lambda: coo(SHAPE, VALUES, [1, 12]), "outside"),
    (lambda: coo(SHAPE, VALUES, [-1, 1]), "outside"),
    (lambda: coo(SHAPE, VALUES, [[0, 0], [1, 4]]), "outside"),
    (lambda: coo([3, 4, 5], VALUES, [[0, 0], [1, 3]]), "index a matrix"),
    (lambda: coo([3, -4], VALUES, [0, 1]), "0 or more"),
    (lambda: coo(SHAPE, np.array([b"a", b"b"]), [0, 1]), r"\|S1"),
    (lambda: coo(SHAPE, VALUES, [0.5, 1]), "whole numbers"),
    (lambda: csr([1, 3], [0, 1]), "3 rows need 4 row offsets"),
    (lambda: csr([1, 3], [0, 1, 3, 2]), "from 0 to 2"),
    (lambda: csr([1, 4], [0, 1, 2, 2]), "4 columns"),
    (lambda: csr([1], [0, 1, 2, 2]), "one column index for each"),
    (lambda: coo(SHAPE, VALUES, [0, 1]).as_csrc_view(), "not ORT_SPARSE_CSRC"),
    (lambda: coo(SHAPE, VALUES, [0, 1]).to_cuda(CPU), "not on CUDA"),
    (lambda: SparseTensor.sparse_coo_from_numpy(
        SHAPE, VALUES, np.array([0, 1]), OrtDevice.make("cuda", 0)), "supported on the CPU"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), WRONG, ids=[m for _, m in WRONG])
def test_invalid_indices(call: Any, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        call()


def test_as_a_value() -> None:
    value = OrtValue.ort_value_from_sparse_tensor(coo(SHAPE, VALUES, [1, 7]))
    assert value.is_sparse_tensor()
    assert not value.is_tensor()
    assert value.shape() == [3, 4]
    assert value.element_type() == 1
    assert value.data_type() == "sparse_tensor(float)"
    np.testing.assert_array_equal(value.as_sparse_tensor().values(), VALUES)
    with pytest.raises(RuntimeError, match="not a tensor: sparse"):
        value.numpy()


def test_sessions_take_and_give_them() -> None:
    kind = helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [3, 4])
    x, y = (onnx.ValueInfoProto(name=n, type=kind) for n in "xy")
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = sardonyx.InferenceSession(model)
    assert session.get_inputs()[0].type == "sparse_tensor(float)"
    fed = coo(SHAPE, VALUES, [1, 7])
    (made,) = session.run(None, {"x": fed})
    assert isinstance(made, SparseTensor)
    np.testing.assert_array_equal(made.to_dense(), fed.to_dense())
    value = OrtValue.ort_value_from_sparse_tensor(fed)
    assert session.run_with_ort_values(None, {"x": value})[0].is_sparse_tensor()
    refused = [
        (np.zeros((3, 4), np.float32), "ndarray"),
        (coo([3, 3], VALUES, [0, 1]), "3, 3"),
        (coo(SHAPE, VALUES.astype(float), [0, 1]), "sparse_tensor.double"),
    ]
    for wrong, match in refused:
        with pytest.raises(sardonyx.SardonyxError, match=match):
            session.run(None, {"x": wrong})


def product(kind: int, *dims: int, **attrs: Any) -> bytes:
    """A model that multiplies a sparse 3x4 matrix by a dense one."""
    a = helper.make_sparse_tensor_value_info("a", kind, [3, 4])
    b = helper.make_tensor_value_info("b", kind, dims)
    y = helper.make_tensor_value_info("y", kind, None)
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain=MS, **attrs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    graph = helper.make_graph([node], "g", [a, b], [y])
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


MS = "com.microsoft"


@pytest.mark.parametrize("attrs", [{}, {"transA": 1}, {"alpha": 2.0}, {"transB": 1}], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_product_with_a_dense_matrix(attrs: dict[str, Any], dtype: Any) -> None:
    rows = 5 if "transB" in attrs else 3 if "transA" in attrs else 4
    columns = 4 if "transB" in attrs else 5
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    data = product(kind, rows, columns, **attrs)
    b = np.arange(rows * columns).reshape(rows, columns).astype(dtype)
    values, places = VALUES.astype(dtype), np.array([[0, 1], [1, 3]])
    dense = np.zeros((3, 4), dtype)
    dense[places[:, 0], places[:, 1]] = values
    left, right = dense.T if "transA" in attrs else dense, b.T if "transB" in attrs else b
    want = left @ right * dtype(attrs.get("alpha", 1))
    # onnxruntime's inference refuses transposed operands, and its integers take no alpha.
    modules = [sardonyx, onnxruntime] if not attrs else [sardonyx]
    for module in modules:
        cpu = module.OrtDevice.make("cpu", 0)
        a = module.SparseTensor.sparse_coo_from_numpy(SHAPE, values, places, cpu)
        feeds = {
            "a": module.OrtValue.ort_value_from_sparse_tensor(a),
            "b": module.OrtValue.ortvalue_from_numpy(b),
        }
        session = module.InferenceSession(data, providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run_with_ort_values(None, feeds)[0].numpy(), want)


def test_a_product_that_does_not_fit() -> None:
    with pytest.raises(sardonyx.SardonyxError, match="inner dimensions differ"):
        sardonyx.InferenceSession(product(TensorProto.FLOAT, 5, 5))
