"""Custom ops as C functions of the type `sardonyx_op` (include/sardonyx_op.h).

A node becomes a native step that calls the function directly. Where ranks are known only at run
time the node is a Python step, which calls the same function through ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.custom_ops.python_op import CustomOp, array_fact, encoded
from sardonyx.errors import InvalidArgument, InvalidGraph, RuntimeException
from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Scope
from sardonyx.ops import register
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No

_ADDRESS_END: Final = 1 << 63  # user space addresses are below


class _Tensor(ctypes.Structure):
    """sardonyx_tensor of include/sardonyx_op.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("type", ctypes.c_int32),
    )


# int sardonyx_op(inputs, n_inputs, outputs, n_outputs, numbers, n_numbers)
_TENSORS: Final = (ctypes.POINTER(_Tensor), ctypes.c_int)
_NUMBERS: Final = (ctypes.POINTER(ctypes.c_double), ctypes.c_int)
C_FUNCTION: Final = ctypes.CFUNCTYPE(ctypes.c_int, *_TENSORS, *_TENSORS, *_NUMBERS)


class _NativeOp(CustomOp):
    """A custom op whose function reads and writes tensors of numbers in allocated memory."""

    __slots__ = ()

    def _facts(self, g: Scope, *facts: Any, **attrs: Any) -> tuple[Fact, ...]:
        outputs = super()._facts(g, *facts, **attrs)
        has_shapes = all(f is None or f.shape is not None for f in facts)
        if has_shapes and any(f.shape is None for f in outputs):
            raise InvalidGraph(
                f"{self} is a native op, and its shape rule leaves a shape open",
                hint="its outputs are allocated before the function runs",
            )
        if any(f is not None and f.dtype is STRING for f in (*facts, *outputs)):
            raise InvalidGraph(
                f"{self} is a native op, and here one of strings", hint="declare it with custom_op"
            )
        return outputs


def native_op(  # noqa: PLR0913 - the parts of a schema, each passed by name
    function: Any,
    domain: str,
    name: str,
    *,
    inputs: str,
    outputs: str,
    shape: str | Callable[..., Any],
    attrs: Mapping[str, Any] | None = None,
    types: Mapping[str, str] | None = None,
    version: int = 1,
    pure: bool = False,
) -> CustomOp:
    """Declare an op that is a C function of the type `sardonyx_op` (include/sardonyx_op.h).

    `function` is one of a `ctypes` library, or an address. It is called without the GIL, with
    contiguous tensors. The other arguments are those of `custom_op`; `shape` is required. The
    function gets the attributes that are ints or floats, in the order of their declaration.
    """
    address = _address(function)
    op: CustomOp

    def call(*arrays: Any, **values: Any) -> tuple[Any, ...]:
        return _call_through_ctypes(op, address, arrays, values)

    schema: dict[str, Any] = {
        "inputs": inputs, "outputs": outputs, "attrs": attrs, "types": types, "shape": shape,
        "version": version, "pure": pure,
    }  # fmt: skip
    op = _NativeOp(call, domain, name, **schema)
    op.lowering_rule = lambda node: _lower(op, address, node)
    register(op)
    return op


def _address(function: Any) -> int:
    if isinstance(function, int):
        address: int | None = function
    else:
        is_text = isinstance(function, (str, bytes))  # ctypes would cast its characters' address
        try:
            address = None if is_text else ctypes.cast(function, ctypes.c_void_p).value
        except (ctypes.ArgumentError, TypeError):
            address = None
    if not address or not 0 < address < _ADDRESS_END or not native.is_mapped(address, 1):
        raise InvalidArgument(
            f"a native op must be a ctypes function or an address, got {function!r}"
        )
    return address


def _numbers(op: CustomOp, attrs: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the attributes that are passed to the function."""
    names = [n for n, kind in op.attr_kinds.items() if kind in ("int", "float")]
    return tuple(float(attrs[n]) for n in names)


def _lower(op: CustomOp, address: int, node: Node) -> Call | No:
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.tensor.dtype.bits < 8:
            return No(f"elements of {value.tensor.dtype} have no address of their own")
    absent = (None,) * op.n_absent(len(node.inputs))
    return Call("custom", (*node.inputs, *absent), (address,), _numbers(op, node.attrs))


def _call_through_ctypes(
    op: CustomOp, address: int, arrays: Sequence[Any], attrs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Call the function from Python, for nodes whose ranks are known only at run time."""
    inputs = [None if a is None else np.ascontiguousarray(a).reshape(a.shape) for a in arrays]
    facts = [None if a is None else array_fact(a) for a in inputs]
    out_facts = op._facts(Scope(), *facts, **{k: encoded(v) for k, v in attrs.items()})
    outputs = [np.empty(_static_shape(op, f), f.dtype.np) for f in out_facts]
    numbers = _numbers(op, {**op.defaults, **attrs})
    c_numbers = (ctypes.c_double * max(1, len(numbers)))(*numbers)
    tensors = (_c_tensors(inputs), len(inputs), _c_tensors(outputs), len(outputs))
    code = C_FUNCTION(address)(*tensors, c_numbers, len(numbers))
    if code:
        raise RuntimeException(f"the function returned the error {code}")
    return tuple(outputs)


def _static_shape(op: CustomOp, fact: Fact) -> tuple[int, ...]:
    if fact.static is None:
        raise RuntimeException(f"the shape rule of {op} returns {fact} for static shapes")
    return fact.static


def _c_tensors(arrays: Sequence[Any]) -> Any:
    """Return a C array of tensors over the memory of arrays, which the caller keeps alive."""
    tensors = (_Tensor * max(1, len(arrays)))()
    for tensor, array in zip(tensors, arrays, strict=False):
        if array is not None:
            dims = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
            tensor.data, tensor.dims = array.ctypes.data, dims
            tensor.rank, tensor.type = array.ndim, array_fact(array).dtype.onnx
    return tensors
