"""Convolutions, pools, and what else works on images."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops.draw import Generator, image, types
from tests.random_graphs.ops.linear import weight
from tests.random_graphs.value import Value


def windows(b: Builder, x: Value, dilates: bool = True) -> dict[str, Any]:
    """Kernel, strides, pads and dilations that fit an image."""
    edges = x.shape[2:]
    kernel = [b.rng.randint(1, min(d, 5)) for d in edges]
    if b.rng.random() < 0.4:
        kernel = [min(3, d) for d in edges]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if b.rng.random() < 0.5:
        attrs["strides"] = [b.rng.randint(1, 3) for _ in edges]
    if dilates and b.rng.random() < 0.25:
        dilations = [b.rng.randint(1, 2) for _ in edges]
        if all((k - 1) * e + 1 <= d for k, e, d in zip(kernel, dilations, edges, strict=True)):
            attrs["dilations"] = dilations
    kind = b.rng.random()
    if kind < 0.4:
        attrs["pads"] = [b.rng.randint(0, k - 1) for k in (*kernel, *kernel)]
    elif kind < 0.5 and "dilations" not in attrs:
        attrs["auto_pad"] = b.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    return attrs


def conv(b: Builder, op: str) -> None:
    x = image(b, types(b, op))
    attrs = windows(b, x)
    channels = x.shape[1]
    group = b.rng.choice([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
    filters = group * b.rng.choice((1, 2, 3, 8, 16))
    w = weight(b, x, (filters, channels // group, *attrs["kernel_shape"]))
    inputs = [x, w]
    if b.rng.random() < 0.6:
        inputs.append(b.like(x, (filters,)))
    b.emit(op, inputs, group=group, **attrs)


def conv_transpose(b: Builder, op: str) -> None:
    x = image(b, types(b, op), (1, 2, 2), 2)
    attrs = windows(b, x)
    channels = x.shape[1]
    group = b.rng.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    filters = b.rng.choice((1, 2, 3, 5))
    w = weight(b, x, (channels, filters, *attrs["kernel_shape"]))
    inputs = [x, w]
    if b.rng.random() < 0.5:
        inputs.append(b.like(x, (filters * group,)))
    if "strides" in attrs and b.rng.random() < 0.4:
        attrs["output_padding"] = [b.rng.randint(0, s - 1) for s in attrs["strides"]]
    b.emit(op, inputs, group=group, **attrs)


def pool(b: Builder, op: str) -> None:
    x = image(b, types(b, op))
    attrs = windows(b, x, dilates=b.traits.opset >= (10 if op == "MaxPool" else 19))
    outputs = 1
    if b.traits.opset >= 10 and b.rng.random() < 0.3 and "auto_pad" not in attrs:
        attrs["ceil_mode"] = 1
    if op == "AveragePool":
        attrs["count_include_pad"] = b.rng.randrange(2)
    elif op == "LpPool":
        attrs["p"] = b.rng.choice((1, 2, 3))
        if b.traits.opset < 18:
            attrs.pop("dilations", None)
            attrs.pop("ceil_mode", None)
    elif b.rng.random() < 0.2:
        outputs = 2
    b.emit(op, [x], outputs, **attrs)


def global_pool(b: Builder, op: str) -> None:
    b.emit(op, [image(b, types(b, op), least=1)])


def batch_norm(b: Builder, op: str) -> None:
    x = image(b, types(b, op), (0, 1, 2, 2, 3), 1) if b.rng.random() < 0.9 else _flat(b, op)
    channels = x.shape[1]
    same = x.dtype
    scale, shift, mean = (_stat(b, same, channels, -1, 1) for _ in range(3))
    variance = _stat(b, same, channels, 0.3, 2)
    attrs = {"epsilon": b.rng.choice((1e-5, 1e-3))} if b.rng.random() < 0.7 else {}
    b.emit(op, [x, scale, shift, mean, variance], **attrs)


def _flat(b: Builder, op: str) -> Value:
    return b.pick(types(b, op), lambda v: v.rank == 2 and v.shape[1] > 0, lambda: b.new_shape(2))


def _stat(b: Builder, dtype: str, n: int, low: float, high: float) -> Value:
    style = b.rng.choice(("initializer", "initializer", "node", "input"))
    return b.new(dtype, (n,), low, high, style)


def instance_norm(b: Builder, op: str) -> None:
    x = image(b, types(b, op), least=2)
    n = x.shape[1]
    b.emit(
        op, [x, _stat(b, x.dtype, n, 0.5, 1.5), _stat(b, x.dtype, n, -1, 1)],
        epsilon=b.rng.choice((1e-5, 1e-2, None)),
    )  # fmt: skip


def group_norm(b: Builder, op: str) -> None:
    x = image(b, types(b, op), least=2)
    channels = x.shape[1]
    groups = b.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    n = channels if b.traits.opset >= 21 else groups
    b.emit(
        op, [x, _stat(b, x.dtype, n, 0.5, 1.5), _stat(b, x.dtype, n, -1, 1)],
        num_groups=groups, epsilon=b.rng.choice((1e-5, 1e-2, None)),
    )  # fmt: skip


def layer_norm(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: 0 < v.rank < 5 and v.shape[-1] > 1 and v.data.size > 1)
    at = b.rng.choice((-1, -1, -1, b.rng.randrange(-x.rank, x.rank)))
    shape = x.shape[at:]
    inputs = [x, b.like(x, shape, low=0.5, high=1.5)]
    if op == "LayerNormalization" and b.rng.random() < 0.7:
        inputs.append(b.like(x, shape))
    outputs = b.rng.choice((1, 1, 1, 2, 3)) if op == "LayerNormalization" else 1
    b.emit(op, inputs, outputs, axis=at, epsilon=b.rng.choice((1e-5, 1e-2, None)))


def lp_norm(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: v.rank > 0 and v.data.size > 0)
    b.emit(op, [x], axis=b.rng.randrange(-x.rank, x.rank), p=b.rng.choice((1, 2)))


def lrn(b: Builder, op: str) -> None:
    x = image(b, types(b, op), (2,), 1)
    b.emit(
        op, [x], size=b.rng.choice((1, 3, 5)), alpha=b.rng.choice((1e-4, 0.1)), beta=0.75,
        bias=b.rng.choice((1.0, 2.0)),
    )  # fmt: skip


def mean_variance(b: Builder, op: str) -> None:
    x = image(b, types(b, op), (2,), 2)
    b.emit(op, [x], axes=b.rng.choice((None, [0, 2, 3], [2, 3])))


MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


def resize(b: Builder, op: str) -> None:
    if b.traits.opset < 10:
        raise Unfit("it was Upsample then")
    x = image(b, types(b, op, "T1" if b.traits.opset > 10 else "T"), (1, 2, 2), 2)
    mode = b.rng.choice(MODES if x.rank == 4 else MODES[:2])
    scales = np.array([1, 1, *(b.rng.choice((1, 2, 0.5, 1.5, 3)) for _ in x.shape[2:])], np.float32)
    if b.traits.opset == 10:
        b.emit(op, [x, b.given(scales, "initializer")], mode=b.rng.choice(MODES[:2]))
        return
    attrs: dict[str, Any] = {"mode": mode}
    attrs["coordinate_transformation_mode"] = b.rng.choice(COORDINATES)
    if mode == "nearest":
        attrs["nearest_mode"] = b.rng.choice(("round_prefer_floor", "floor", "ceil", None))
    roi = None
    if b.traits.opset < 13:
        roi = b.given(np.zeros(0, np.float32), "initializer")
    if b.rng.random() < 0.5:
        b.emit(
            op, [x, roi, b.given(scales, b.rng.choice(("initializer", "node", "input")))], **attrs
        )
        return
    sizes = np.array([*x.shape[:2], *(b.rng.randint(1, 9) for _ in x.shape[2:])], np.int64)
    empty = b.given(np.zeros(0, np.float32), "initializer") if b.traits.opset < 13 else None
    b.emit(op, [x, roi, empty, b.given(sizes, b.rng.choice(("initializer", "input")))], **attrs)


def upsample(b: Builder, op: str) -> None:
    if b.traits.opset > 9:
        raise Unfit("it is Resize now")
    x = image(b, ["float"], (2,), 1)
    scales = np.array([1, 1, b.rng.choice((1, 2, 3)), b.rng.choice((1, 2, 1.5))], np.float32)
    b.emit(op, [x], params={"scales": scales}, mode=b.rng.choice(("nearest", "linear", None)))


def grid_sample(b: Builder, op: str) -> None:
    x = image(b, types(b, op, "T1"), (2,), 2)
    h, w = b.rng.randint(1, 5), b.rng.randint(1, 5)
    grid = b.new("float", (x.shape[0], h, w, 2), -1.1, 1.1)
    names = (
        ("bilinear", "nearest", "bicubic")
        if b.traits.opset < 20
        else ("linear", "nearest", "cubic")
    )
    b.emit(
        op, [x, grid], mode=b.rng.choice((*names, None)), align_corners=b.rng.randrange(2),
        padding_mode=b.rng.choice(("zeros", "border", "reflection")),
    )  # fmt: skip


OPS: dict[str, Generator] = {
    "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": pool, "AveragePool": pool,
    "LpPool": pool, "GlobalMaxPool": global_pool, "GlobalAveragePool": global_pool,
    "GlobalLpPool": global_pool, "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm, "GroupNormalization": group_norm,
    "LayerNormalization": layer_norm, "RMSNormalization": layer_norm, "LpNormalization": lp_norm,
    "LRN": lrn, "MeanVarianceNormalization": mean_variance, "Resize": resize,
    "GridSample": grid_sample, "Upsample": upsample,
}  # fmt: skip
