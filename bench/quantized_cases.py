"""The rows of bench/quantized.py: quantized ops by type, zero point, layout and shape."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from onnx import helper, numpy_helper

from bench.int8 import random_bytes
from bench.steps import Array, Made, floats, serialized

_CONTRIB: Final = "com.microsoft"
# onnxruntime has no products of signed activations by unsigned weights.
_TYPES: Final = ((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))


@dataclass(frozen=True)
class Row:
    """A model to be timed, made when it is needed."""

    family: str
    name: str
    make: Callable[[], Made]
    # Of codes in steps, of floats relative to the largest: ties may be rounded either way.
    tolerance: float = 1

    @cached_property
    def made(self) -> Made:
        """The model and its inputs."""
        return self.make()


class Net:
    """A model while it is built: nodes and constants."""

    def __init__(self, **feed: Array) -> None:
        self._feed = feed
        self._nodes: list[Any] = []
        self._held: list[Any] = []

    def const(self, value: Any, kind: Any = np.float32) -> str:
        """The name of a constant."""
        name = f"c{len(self._held)}"
        array = value if isinstance(value, np.ndarray) else np.array(value, kind)
        self._held.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, *inputs: Any, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        """The output of a node, or all of them; arrays become constants, None is not given."""
        names = ["" if i is None else i if isinstance(i, str) else self.const(i) for i in inputs]
        made = [f"y{len(self._nodes)}.{j}" for j in range(outputs)]
        self._nodes.append(helper.make_node(op, names, made, domain=domain, **attrs))
        return made[0] if outputs == 1 else made

    def made(self, *outputs: str) -> Made:
        """The whole model."""
        return Made(serialized(self._nodes, self._feed, outputs, self._held), self._feed)


def _name(kind: Any) -> str:
    return str(np.dtype(kind).name).replace("uint", "u").replace("int", "s").replace("float", "f")


def _kinds(*kinds: Any) -> str:
    return "".join(_name(k) for k in kinds)


def _zero(kind: Any, maps: int, which: str) -> Array:
    info = np.iinfo(kind)
    if which == "middle":
        return np.array((info.min + info.max + 1) // 2, kind)
    if which == "one":
        return np.array(info.min + 100, kind)
    return np.arange(maps).astype(kind)


class Layer(NamedTuple):
    """A convolution; size, kernel, stride and dilation are equal along its axes."""

    name: str
    size: int
    channels: int
    maps: int
    group: int
    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    axes: int = 2

    def attrs(self) -> dict[str, Any]:
        """The attributes of the op."""
        return {
            "pads": [self.kernel // 2 * self.dilation] * 2 * self.axes,
            "strides": [self.stride] * self.axes,
            "dilations": [self.dilation] * self.axes,
            "group": self.group,
        }

    def image(self, kind: Any) -> Array:
        """Random activations."""
        return random_bytes(kind, 1, self.channels, *[self.size] * self.axes)

    def weights(self, kind: Any) -> Array:
        """Random weights."""
        kernel = [self.kernel] * self.axes
        return random_bytes(kind, self.maps, self.channels // self.group, *kernel)


LAYERS: Final = (
    Layer("depthwise", 56, 128, 128, 128),
    Layer("depthwise /2", 56, 128, 128, 128, stride=2),
    Layer("depthwise 7²", 7, 960, 960, 960),
    Layer("depthwise dilated", 28, 96, 96, 96, dilation=2),
    Layer("depthwise 5x5", 28, 120, 120, 120, kernel=5),
    Layer("depthwise 7x7", 14, 384, 384, 384, kernel=7),
    Layer("depthwise of 20", 56, 20, 20, 20),
    Layer("depthwise 1d", 1000, 64, 64, 64, kernel=9, axes=1),
    Layer("depthwise 1d of 31", 300, 256, 256, 256, kernel=31, axes=1),
    Layer("depthwise 3d", 14, 64, 64, 64, axes=3),
    Layer("depthwise x2", 28, 64, 128, 64),
    Layer("64 groups of 2", 28, 128, 128, 64),
    Layer("32 groups of 4", 56, 128, 128, 32),
    Layer("32 groups of 4 /2", 56, 128, 128, 32, stride=2),
    Layer("32 groups of 8", 28, 256, 256, 32),
    Layer("32 groups of 16", 14, 512, 512, 32),
    Layer("32 groups of 32", 7, 1024, 1024, 32),
    Layer("10 groups of 24", 14, 240, 240, 10),
    Layer("8 groups, 16 to 4", 28, 128, 32, 8),
    Layer("4 groups, 1x1", 28, 240, 240, 4, kernel=1),
    Layer("groups of 4, 1d", 300, 128, 128, 32, kernel=5, axes=1),
    Layer("groups of 8, dilated", 28, 128, 128, 16, dilation=2),
    Layer("stem 3x3/2", 112, 3, 32, 1, stride=2),
    Layer("stem 7x7/2", 112, 3, 64, 1, kernel=7, stride=2),
    Layer("one group", 28, 64, 64, 1),
    Layer("one group, 7²", 7, 512, 512, 1),
    Layer("one group /2", 28, 64, 128, 1, stride=2),
    Layer("one group, dilated", 28, 64, 64, 1, dilation=2),
    Layer("one group, 1x1", 28, 128, 128, 1, kernel=1),
    Layer("one group, 1x1/2", 28, 128, 256, 1, kernel=1, stride=2),
    Layer("one group, 1x1 of 24", 56, 24, 144, 1, kernel=1),
    Layer("one group, 1d", 500, 80, 256, 1, axes=1),
    Layer("one group, 1d dilated", 500, 64, 64, 1, dilation=8, axes=1),
    Layer("one group, 3d", 12, 32, 32, 1, axes=3),
)


def _qlinear_conv(layer: Layer, types: tuple[Any, Any], zero: str, bias: bool = True) -> Made:
    kind, w_kind = types
    net = Net(x=layer.image(kind))
    w_zero = _zero(w_kind, layer.maps, zero)
    y = net.add(
        "QLinearConv", "x", np.float32(0.02), np.array(7, kind), layer.weights(w_kind),
        np.full(w_zero.shape, 0.001, np.float32), w_zero, np.float32(0.5), np.array(9, kind),
        np.arange(layer.maps, dtype=np.int32) if bias else None, **layer.attrs(),
    )  # fmt: skip
    return net.made(y)


def _qdq_conv(layer: Layer, types: tuple[Any, Any]) -> Made:
    """Between DequantizeLinear and QuantizeLinear, with one scale per feature map."""
    kind, w_kind = types
    x = (
        layer.image(kind)
        if np.dtype(kind).itemsize == 1
        else _codes(kind, *layer.image(np.uint8).shape)
    )
    net = Net(x=x)
    zero = np.array(7, kind)
    w_zero = np.zeros(layer.maps, w_kind)
    w_scale = np.full(layer.maps, 0.001, np.float32)
    weights = layer.weights(np.int8).astype(w_kind)
    image = net.add("DequantizeLinear", "x", np.float32(0.02), zero)
    w = net.add("DequantizeLinear", weights, w_scale, w_zero, axis=0)
    y = net.add("Conv", image, w, floats(layer.maps), **layer.attrs())
    return net.made(net.add("QuantizeLinear", y, np.float32(0.5), zero))


def _conv_integer(layer: Layer, types: tuple[Any, Any], zero: str) -> Made:
    kind, w_kind = types
    net = Net(x=layer.image(kind))
    w_zero = _zero(w_kind, layer.maps, zero)
    zeros = np.array(7, kind), w_zero
    return net.made(net.add("ConvInteger", "x", layer.weights(w_kind), *zeros, **layer.attrs()))


def _convs() -> Iterator[Row]:
    for layer, types, zero in itertools.product(LAYERS, _TYPES, ("middle", "one", "channels")):
        if zero == "channels" and types[1] is np.uint8:
            continue  # onnxruntime needs equal zero points of unsigned weights
        name = f"{layer.name}, {_kinds(*types)}, zero {zero}"
        yield Row("QLinearConv", name, partial(_qlinear_conv, layer, types, zero))
    for layer in LAYERS[::3]:
        name = f"{layer.name}, u8s8"
        yield Row("QDQ Conv", name, partial(_qdq_conv, layer, (np.uint8, np.int8)))
        for types, zero in itertools.product(_TYPES, ("middle", "one")):
            name = f"{layer.name}, {_kinds(*types)}, zero {zero}"
            make = partial(_conv_integer, layer, types, zero)
            yield Row("ConvInteger", name, make, 0)
    for layer in LAYERS[::4]:
        for kind, w_kind in ((np.uint16, np.int8), (np.int16, np.int8), (np.uint16, np.int16)):
            name = f"{layer.name}, {_kinds(kind, w_kind)}"
            yield Row("QDQ Conv 16", name, partial(_qdq_conv, layer, (kind, w_kind)), 8)


_PRODUCTS: Final = (  # batch, rows, depth, columns
    ((), 1, 768, 768), ((), 128, 768, 768), ((), 128, 3072, 768), ((), 49, 512, 2048),
    ((), 784, 64, 64), ((), 37, 75, 51), ((), 8, 256, 1000), ((12,), 128, 64, 128),
)  # fmt: skip


def _operands(shape: tuple[Any, ...], types: tuple[Any, Any]) -> tuple[Array, Array]:
    batch, m, k, n = shape
    return random_bytes(types[0], *batch, m, k), random_bytes(types[1], *batch, k, n)


def _product_name(shape: tuple[Any, ...], types: Sequence[Any], zero: str) -> str:
    batch, m, k, n = shape
    return f"{''.join(f'{b} of ' for b in batch)}{m}x{k}x{n}, {_kinds(*types)}, zero {zero}"


def _product(op: str, shape: tuple[Any, ...], types: tuple[Any, Any], zero: str) -> Made:
    a, w = _operands(shape, types)
    is_batch = bool(shape[0])
    net = Net(a=a, w=w) if is_batch else Net(a=a)
    right: Any = "w" if is_batch else w
    zeros = np.array(7, types[0]), _zero(types[1], shape[-1], zero)
    scales = np.float32(0.02), np.full(zeros[1].shape, 0.001, np.float32)
    result = np.float32(0.5), np.array(9, types[0])
    if op == "QLinearMatMul":
        y = net.add(op, "a", scales[0], zeros[0], right, scales[1], zeros[1], *result)
    elif op == "MatMulInteger":
        y = net.add(op, "a", right, *zeros)
    elif op == "QGemm":
        bias = np.arange(shape[-1], dtype=np.int32)
        matrices = "a", scales[0], zeros[0], right, scales[1], zeros[1]
        y = net.add(op, *matrices, bias, *result, domain=_CONTRIB)
    else:
        bias = floats(shape[-1])
        operands = "a", right, scales[0], scales[1], *zeros, bias
        y = net.add(op, *operands, domain=_CONTRIB)
    return net.made(y)


def _qdq_product(shape: tuple[Any, ...], types: tuple[Any, Any]) -> Made:
    _, m, k, n = shape
    net = Net(a=_codes(types[0], m, k))
    zero = np.array(7, types[0])
    left = net.add("DequantizeLinear", "a", np.float32(0.02), zero)
    weights = random_bytes(np.int8, k, n).astype(types[1])
    columns = np.full(n, 0.001, np.float32), np.zeros(n, types[1])
    right = net.add("DequantizeLinear", weights, *columns, axis=1)
    y = net.add("Add", net.add("MatMul", left, right), floats(n))
    return net.made(net.add("QuantizeLinear", y, np.float32(0.5), zero))


def _dynamic(op: str, shape: tuple[Any, ...], w_kind: Any, zero: str) -> Made:
    """Products of activations that are quantized as they come."""
    _, m, k, n = shape
    net, w = Net(a=floats(m, k)), random_bytes(w_kind, k, n)
    w_zero = _zero(w_kind, n, zero)
    scale = np.full(w_zero.shape, 0.001, np.float32)
    if op == "DynamicQuantizeMatMul":
        return net.made(net.add(op, "a", w, scale, w_zero, floats(n), domain=_CONTRIB))
    codes, step, a_zero = net.add("DynamicQuantizeLinear", "a", outputs=3)
    total = net.add("Cast", net.add("MatMulInteger", codes, w, a_zero, w_zero), to=1)
    y = net.add("Mul", total, net.add("Mul", step, scale))
    return net.made(net.add("Add", y, floats(n)))


def _float8_product(shape: tuple[Any, ...], kind: Any) -> Made:
    _, m, k, n = shape
    net = Net(a=floats(m, k).astype(kind))
    weights = floats(k, n, seed=1).astype(kind)
    one, zero = np.float32(1), np.zeros((), kind)
    return net.made(
        net.add("QLinearMatMul", "a", one, zero, weights, one, zero, np.float32(2), zero)
    )


def _products() -> Iterator[Row]:
    zeros = ("middle", "one", "channels")
    ops = {"QLinearMatMul": 1, "MatMulInteger": 0, "QGemm": 1, "MatMulIntegerToFloat": 1e-5}
    for (op, tolerance), shape, types, zero in itertools.product(
        ops.items(), _PRODUCTS, _TYPES, zeros
    ):
        if shape[0] and (op == "QGemm" or zero == "channels"):
            continue
        name = _product_name(shape, types, zero)
        yield Row(op, name, partial(_product, op, shape, types, zero), tolerance)
    for op, shape, kind, zero in itertools.product(
        ("DynamicQuantizeMatMul", "MatMulInteger of floats"), _PRODUCTS[:-1],
        (np.uint8, np.int8), ("middle", "one"),
    ):  # fmt: skip
        name = _product_name(shape, (kind,), zero)
        yield Row(op, name, partial(_dynamic, op, shape, kind, zero), 1e-3)
    for shape, types in itertools.product(
        _PRODUCTS[:-1], ((np.uint16, np.int8), (np.int16, np.int8), (np.uint16, np.int16))
    ):
        name = _product_name(shape, types, "none")
        yield Row("QDQ MatMul 16", name, partial(_qdq_product, shape, types), 8)
    for shape, kind in itertools.product(
        _PRODUCTS[:-1], (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    ):
        name = _product_name(shape, (kind,), "none")
        yield Row("QLinearMatMul 8", name, partial(_float8_product, shape, kind), 0.2)


def _codes(kind: Any, *shape: int) -> Array:
    return random_bytes(kind, *shape)


_IMAGE: Final = (1, 64, 56, 56)
_OTHERS: Final[dict[str, tuple[int, ...]]] = {
    "same": _IMAGE, "channel": (1, 64, 1, 1), "number": (), "row": (56,), "outer": (1, 1, 56, 56),
}  # fmt: skip


def _binary(op: str, kind: Any, other: tuple[int, ...], is_const: bool, shape: Any) -> Made:
    right = _codes(kind, *other) if other else np.array(99, kind)
    feed = {"x": _codes(kind, *shape)}
    net = Net(**feed) if is_const else Net(**feed, w=right)
    zero = np.array(5, kind)
    second = right if is_const else "w"
    operands = "x", np.float32(0.02), zero, second, np.float32(0.05), zero
    return net.made(net.add(op, *operands, np.float32(0.1), zero, domain=_CONTRIB))


def _unary(op: str, kind: Any, shape: tuple[int, ...], **attrs: Any) -> Made:
    net, zero = Net(x=_codes(kind, *shape)), np.array(5, kind)
    result = np.float32(1 / 256 if "Softmax" in op else 0.1), zero
    return net.made(net.add(op, "x", np.float32(0.02), zero, *result, domain=_CONTRIB, **attrs))


def _concat(kind: Any, axis: int, scales: Sequence[float]) -> Made:
    parts = {f"x{i}": _codes(kind, *_IMAGE) for i in range(len(scales))}
    net, zero = Net(**parts), np.array(5, kind)
    given: list[Any] = []
    for name, scale in zip(parts, scales, strict=True):
        given += [name, np.float32(scale), zero]
    return net.made(
        net.add("QLinearConcat", np.float32(0.1), zero, *given, axis=axis, domain=_CONTRIB)
    )


def _where(kind: Any) -> Made:
    a, c = _codes(kind, *_IMAGE), _codes(kind, *_IMAGE)[:, :, ::-1].copy()
    net, zero = Net(c=a > 10, x=a, y=c), np.array(5, kind)
    operands = "c", "x", np.float32(0.02), zero, "y", np.float32(0.05), zero, np.float32(0.1), zero
    return net.made(net.add("QLinearWhere", *operands, domain=_CONTRIB))


_POOLS: Final[Mapping[str, dict[str, Any]]] = {
    "2x2/2": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "3x3": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "7x7": {"kernel_shape": [7, 7]},
}


def _elementwise() -> Iterator[Row]:
    sizes = (_IMAGE, (1, 128, 768))
    for kind in (np.uint8, np.int8):
        k = _name(kind)
        for op, (name, other), is_const in itertools.product(
            ("QLinearAdd", "QLinearMul"), _OTHERS.items(), (True, False)
        ):
            word = "constant" if is_const else "input"
            make = partial(_binary, op, kind, other, is_const, _IMAGE)
            yield Row(op, f"{k}, {word} {name}", make)
        for op, shape in itertools.product(("QLinearSigmoid", "QLinearLeakyRelu"), sizes):
            yield Row(op, f"{k} {shape}", partial(_unary, op, kind, shape))
        for shape, axis in (((12, 128, 128), -1), ((1, 1000), -1), ((8, 21, 1000), 1)):
            make = partial(_unary, "QLinearSoftmax", kind, shape, axis=axis, opset=13)
            yield Row("QLinearSoftmax", f"{k} {shape} axis {axis}", make)
        for last, (name, attrs) in itertools.product((0, 1), _POOLS.items()):
            shape = (1, 56, 56, 64) if last else _IMAGE
            make = partial(_unary, "QLinearAveragePool", kind, shape, channels_last=last, **attrs)
            yield Row("QLinearAveragePool", f"{k} {name} {'NHWC' if last else 'NCHW'}", make)
        for last, pixels in itertools.product((0, 1), (7, 56)):
            shape = (1, pixels, pixels, 512) if last else (1, 512, pixels, pixels)
            make = partial(_unary, "QLinearGlobalAveragePool", kind, shape, channels_last=last)
            name = f"{k} {pixels}² {'NHWC' if last else 'NCHW'}"
            yield Row("QLinearGlobalAveragePool", name, make)
        for axis, scales in itertools.product((1, 3), ((0.1, 0.1), (0.1, 0.2), (0.05, 0.1, 0.2))):
            make = partial(_concat, kind, axis, scales)
            yield Row("QLinearConcat", f"{k} axis {axis} {scales}", make)
        yield Row("QLinearWhere", k, partial(_where, kind))


def _qdq_elementwise(op: str, kind: Any, n: int) -> Made:
    names = [f"x{i}" for i in range(n)]
    net = Net(**{name: _codes(kind, 1, 128, 768) for name in names})
    zero = np.array(7, kind)
    scale = np.float32(1 / np.iinfo(kind).max)
    given = [net.add("DequantizeLinear", name, scale, zero) for name in names]
    y = net.add(op, *given)
    return net.made(net.add("QuantizeLinear", y, np.float32(2) * scale, zero))


def _qdq_elementwise_rows() -> Iterator[Row]:
    ops = {"Add": 2, "Mul": 2, "Sigmoid": 1, "Gelu": 1, "Softmax": 1, "Relu": 1, "Tanh": 1}
    for kind, (op, n) in itertools.product((np.uint8, np.int8, np.uint16, np.int16), ops.items()):
        tolerance = 1 if np.dtype(kind).itemsize == 1 else 4
        make = partial(_qdq_elementwise, op, kind, n)
        yield Row("QDQ", f"{op} {_name(kind)}", make, tolerance)


def _quantize(op: str, kind: Any, real: Any, by: str, shape: tuple[int, ...]) -> Made:
    attrs: dict[str, Any] = {}
    if by == "tensor":
        dims: tuple[int, ...] = ()
    elif by.startswith("axis"):
        attrs["axis"] = int(by[4:])
        dims = (shape[attrs["axis"]],)
    else:
        at = int(by[5:])
        attrs |= {"axis": at, "block_size": 32}
        dims = tuple(d // 32 if i == at else d for i, d in enumerate(shape))
    scale = (np.abs(floats(*dims)) * 0.02 + 0.01).astype(real)
    zero = np.zeros(dims, kind)
    if op == "QuantizeLinear":
        net = Net(x=floats(*shape).astype(real))
        return net.made(net.add(op, "x", scale, zero, **attrs))
    if op == "DequantizeLinear":
        net = Net(x=_codes(kind, *shape))
        return net.made(net.add(op, "x", scale, zero, **attrs))
    # Types that numpy does not know stay inside the model.
    net = Net(x=floats(*shape).astype(real))
    codes = net.add("QuantizeLinear", "x", scale, zero, **attrs)
    return net.made(net.add("DequantizeLinear", codes, scale, zero, **attrs))


def _conversions() -> Iterator[Row]:
    shape = (512, 1024)
    real = (np.float32, np.float16)
    kinds = (np.uint8, np.int8, np.uint16, np.int16)
    small = (ml_dtypes.uint4, ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    by = ("tensor", "axis0", "axis1", "block0", "block1")
    for op, kind, r, b in (
        *itertools.product(("QuantizeLinear", "DequantizeLinear"), kinds, real, by),
        *itertools.product(("both conversions",), small, real, by),
    ):
        make = partial(_quantize, op, kind, r, b, shape)
        tolerance = 1 if op == "QuantizeLinear" else 1e-3
        yield Row(op, f"{_name(kind)} {_name(r)} by {b}", make, tolerance)
    for real_kind, n in itertools.product(real, (768, 98304, 602112)):
        yield Row(
            "DynamicQuantizeLinear", f"{_name(real_kind)} of {n}",
            partial(_dynamic_quantize, real_kind, n),
        )  # fmt: skip


def _dynamic_quantize(kind: Any, n: int) -> Made:
    net = Net(x=floats(n).astype(kind))
    x = "x" if kind is np.float32 else net.add("Cast", "x", to=1)
    return net.made(*net.add("DynamicQuantizeLinear", x, outputs=3))


def rows() -> Iterator[Row]:
    """Every row."""
    yield from _convs()
    yield from _products()
    yield from _elementwise()
    yield from _qdq_elementwise_rows()
    yield from _conversions()
