"""Conv, ConvTranspose, Col2Im, causal and deformable convolution, and fused convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.arrays import Array
from sardonyx.ops.conv.standard import transposed_front, transposed_sizes
from sardonyx.ops.elementwise.chain import TYPES, Code
from sardonyx.ops.elementwise.fused_activation import ACTIVATION_ATTRS
from sardonyx.ops.sliding_window import Ints, WindowGeometry, numbers, window_of
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.elementwise.chain import FUNCTIONS, run_code, why_unsupported
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.sample import taps_of, weigh
from sardonyx.providers.torch.sliding_window import spatial_only, torch_window

_CONVS: Final[Sequence[Any]] = (None, F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED: Final[Sequence[Any]] = (
    None, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
)  # fmt: skip


def conv(x: Tensor, w: Tensor, b: Tensor | None = None, **attrs: Any) -> Tensor:
    """Return the convolution by one torch call; asymmetric padding is applied to x first."""
    moved = torch_window(w.shape[2:], x.shape[2:], attrs)
    path, padding = moved.path, moved.padding
    if padding is None:
        x, padding = moved.padded(x), (0,) * len(path.outs)
    function = _CONVS[len(path.outs)]
    y: Tensor = function(x, w, b, path.strides, padding, path.dilations, attrs["group"])
    return y


def has_relu(x: Tensor, w: Tensor) -> bool:
    """Return whether cuDNN has a fused convolution, add and Relu for these."""
    return x.is_cuda and x.dtype in (torch.float32, torch.float16) and w.dim() == 4


def conv_relu(
    x: Tensor, w: Tensor, b: Tensor | None, z: Tensor | None, attrs: dict[str, Any]
) -> Tensor:
    """Return Relu(conv(x) + z) by one cuDNN call."""
    moved = torch_window(w.shape[2:], x.shape[2:], attrs)
    path, padding = moved.path, moved.padding
    if padding is None:
        x, padding = moved.padded(x), (0,) * len(path.outs)
    # cuDNN needs all operands in one layout: that of the weights, which are constant.
    layout = torch.channels_last if w.is_contiguous(memory_format=torch.channels_last) else None
    x = x.contiguous() if layout is None else x.contiguous(memory_format=layout)
    geometry: Any = (path.strides, padding, path.dilations, attrs["group"])
    if z is None:
        return torch.cudnn_convolution_relu(x, w, b, *geometry)
    z = z.contiguous() if layout is None else z.contiguous(memory_format=layout)
    return torch.cudnn_convolution_add_relu(x, w, z, 1.0, b, *geometry)


@frozen
class TransposedConv:
    """The geometry of a transposed convolution for an input of known size, as torch's arguments."""

    strides: Ints
    dilations: Ints
    padding: Ints
    extra: Ints  # output_padding
    cut: list[int]  # negative pads for F.pad, where `padding` cannot express the crop; else empty


_GEOMETRY: Final = ("auto_pad", "dilations", "pads", "strides", "output_padding", "output_shape")


@lru_cache(maxsize=1024)
def _transposed_conv(kernel: Ints, ins: Ints, *geometry: Any) -> TransposedConv:
    attrs = dict(zip(_GEOMETRY, geometry, strict=True))
    moved = window_of(kernel, attrs)
    outs = numbers(transposed_sizes(moved, ins, attrs))
    front = numbers(transposed_front(moved, (ins, outs), attrs))
    whole = [
        (size - 1) * stride + extent
        for size, stride, extent in zip(ins, moved.strides, numbers(moved.extents), strict=True)
    ]
    # torch's padding is symmetric; output_padding extends the end by less than a stride.
    extra = tuple(o - (n - 2 * f) for o, n, f in zip(outs, whole, front, strict=True))
    limits = map(max, moved.strides, moved.dilations)
    if all(outs) and all(0 <= e < limit for e, limit in zip(extra, limits, strict=True)):
        return TransposedConv(moved.strides, moved.dilations, front, extra, [])
    none = (0,) * len(ins)
    axes = reversed(list(zip(front, outs, whole, strict=True)))
    cut = [c for f, o, n in axes for c in (-f, o + f - n)]
    return TransposedConv(moved.strides, moved.dilations, none, none, cut)


def conv_transpose(x: Tensor, w: Tensor, b: Tensor | None = None, **attrs: Any) -> Tensor:
    """Return the transposed convolution; what torch's padding cannot express is cropped after."""
    geometry = (
        v if v is None or isinstance(v, bytes) else tuple(v) for v in map(attrs.get, _GEOMETRY)
    )
    s = _transposed_conv(tuple(w.shape[2:]), tuple(x.shape[2:]), *geometry)
    function = _TRANSPOSED[x.ndim - 2]
    bias = None if s.cut else b
    y: Tensor = function(x, w, bias, s.strides, s.padding, s.extra, attrs["group"], s.dilations)
    if not s.cut:
        return y
    y = F.pad(y, s.cut)  # outputs that no input reaches are 0 plus the bias
    return y if b is None else y + b.reshape(-1, *(1,) * (x.ndim - 2))


def conv_transpose_with_pads(
    x: Tensor, w: Tensor, pads: Array | None = None, b: Tensor | None = None, **attrs: Any
) -> Tensor:
    """Return a transposed convolution whose pads are an input."""
    static_pads = None if pads is None else tuple(pads.tolist())
    return conv_transpose(x, w, b, **attrs, pads=static_pads, output_shape=None)


def col2im(x: Tensor, image_shape: Array, block_shape: Array, **attrs: Any) -> Tensor:
    """Return the image: columns summed at the positions of their blocks."""
    image, block = tuple(image_shape.tolist()), tuple(block_shape.tolist())
    moved = torch_window(block, image, attrs)
    path = moved.path
    # torch's fold is two-dimensional; else one addition of shifted columns per tap.
    if len(image) == 2 and moved.padding is not None and x.is_floating_point():
        return F.fold(x, image, block, path.dilations, moved.padding, path.strides)
    channels = x.shape[1] // path.n_taps
    value = wide(x)
    columns = value.reshape(x.shape[0], channels, path.n_taps, *path.outs)
    y = value.new_zeros((x.shape[0], channels, *image))
    for tap, outs, ins in path.taps():
        y[:, :, *ins] += columns[:, :, tap][:, :, *outs]
    return y.to(x.dtype)


def causal_conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, past: Tensor | None = None, **attrs: Any
) -> tuple[Tensor, Tensor]:
    """Return a depthwise causal convolution, and the state: the last inputs that taps still read.

    com.microsoft has a dilation, a channels-last layout and a window of several states.
    """
    dilation, count = attrs.get("dilation", 1), attrs.get("state_window", 0)
    n_past, is_last = (w.shape[2] - 1) * dilation, attrs.get("channels_last")
    channels = tuple(x.shape[2:]) if is_last else tuple(x.shape[1:2])

    def first(v: Tensor) -> Tensor:
        return v.reshape(*v.shape[:2], math.prod(channels)).transpose(1, 2) if is_last else v

    def last(v: Tensor) -> Tensor:
        return v.transpose(1, 2).reshape(v.shape[0], -1, *channels) if is_last else v

    x = first(x)
    length = x.shape[2]
    before = None if past is None else first(past[-1] if count else past)
    # Causal padding: the state, or zeros, before the first input, and nothing after the last.
    padded = F.pad(x, (n_past, 0)) if before is None else torch.cat((before, x), 2)
    y = padded[:, :, :0]
    if length:
        y = F.conv1d(padded, w, b, dilation=dilation, groups=x.shape[1])
        y = y if attrs["activation"] == b"none" else F.silu(y)
    if not count:
        return last(y), last(padded[:, :, length : length + n_past])
    # The states after the last `count` inputs; zeros for those before the first one.
    ends = range(max(length - count + 1, min(length, 1)), length + 1)
    states = [last(padded[:, :, end : end + n_past]) for end in ends]
    return last(y), torch.stack([torch.zeros_like(states[0])] * (count - len(states)) + states)


Convolution = Callable[..., Tensor]


def fused_conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, z: Tensor | None = None, **attrs: Any
) -> Tensor:
    """Return a convolution, followed by an addition and an activation."""
    name, params = attrs.pop("activation"), attrs.pop("activation_params") or ()
    if name == b"Relu" and has_relu(x, w):
        return conv_relu(x, w, b, z, attrs)
    y = conv(x, w, b, **attrs)
    y = y if z is None else y + z
    return _activated(y, name.decode(), params) if name else y


def _activated(y: Tensor, name: str, params: Sequence[float]) -> Tensor:
    if name == "Clip":
        return y.clamp(*params[:2])
    # alpha * f(beta * y): not ONNX ops.
    if name in ("ScaledTanh", "ParametricSoftplus"):
        alpha, beta = params
        return (torch.tanh(y * beta) if name == "ScaledTanh" else F.softplus(y * beta)) * alpha
    named = dict(zip(ACTIVATION_ATTRS[name], params, strict=False))
    result: Tensor = FUNCTIONS[ONNX, name].function(y, **named)
    return result


def _channels_last(function: Convolution) -> Convolution:
    """Wrap a convolution for channels-last layout and a fused epilogue."""

    def run(x: Tensor, w: Tensor, *operands: Tensor, code: Code | None, **attrs: Any) -> Tensor:
        del attrs["bf16"]  # an option of the CPU provider
        y = function(x.movedim(-1, 1), w, **attrs).movedim(1, -1)
        return run_code(code, (y, *operands)) if code else y

    return run


def _refuses(node: Node) -> str:
    x, _, *operands = (v.tensor.dtype for v in node.inputs if v is not None)
    code = node.attrs["code"]
    return spatial_only(node) or (why_unsupported(code, (x, *operands)) if code else "")


def deform_columns(x: Tensor, offset: Tensor, mask: Tensor | None = None, **attrs: Any) -> Tensor:
    """Return im2col columns with sampled taps: [batch, channels * taps, *outputs]."""
    path = torch_window(tuple(attrs["kernel_shape"]), x.shape[2:], attrs).path
    return _columns(x, offset, mask, path, attrs["offset_group"])


def weight_gradient(x: Tensor, dy: Tensor, **attrs: Any) -> Tensor:
    """Return the gradient of a convolution by its weights."""
    kernel, group = tuple(attrs["kernel_shape"]), attrs["group"]
    if attrs["channels_last"]:
        x, dy = x.movedim(-1, 1), dy.movedim(-1, 1)
    path = torch_window(kernel, x.shape[2:], attrs).path
    # torch has one padding for both ends; the last outputs may read beyond the image.
    reach = [
        (out - 1) * s + (k - 1) * d + 1
        for out, s, k, d in zip(path.outs, path.strides, path.kernel, path.dilations, strict=True)
    ]
    pads: list[int] = []
    for front, size, end in zip(path.front, path.ins, reach, strict=True):
        pads = [front, end - front - size, *pads]
    padded = torch.nn.functional.pad(x, pads)
    w = x.new_empty((dy.shape[1], x.shape[1] // group, *kernel))
    steps = (path.strides, (0,) * len(kernel), path.dilations, False, (0,) * len(kernel), group)
    mask = (False, True, False)
    _, dw, _ = torch.ops.aten.convolution_backward(dy, padded, w, None, *steps, mask)
    return dw  # type: ignore[no-any-return]


def _columns(
    x: Tensor, offset: Tensor, mask: Tensor | None, path: WindowGeometry, groups: int
) -> Tensor:
    n, channels = x.shape[:2]
    taps, rank, outs = path.n_taps, len(path.outs), path.outs
    if not offset.numel() or not x.numel():
        return x.new_zeros((n, channels * taps, *outs))
    # Each tap is read at a fractional position: its position in the window plus an offset.
    shifts = offset.reshape(n * groups, taps, rank, *outs)
    axes = []
    for i in range(rank):
        place = _starts(path, i, x).reshape(taps, *(1,) * i, -1, *(1,) * (rank - 1 - i))
        position = (shifts[:, :, i] + place).flatten(1)
        axes.append(taps_of(position, path.ins[i], (0.0, 0.0), (b"linear", b"zeros")))
    image = x.reshape(n * groups, channels // groups, *x.shape[2:])
    read = weigh(image, axes)
    if mask is not None:
        read = read * mask.reshape(n * groups, 1, -1)
    return read.reshape(n, channels * taps, *outs)


def _starts(path: WindowGeometry, i: int, x: Tensor) -> Tensor:
    """Return the positions of taps along one axis, before offsets: [taps, outputs]."""
    out = torch.arange(path.outs[i], device=x.device) * path.strides[i] - path.front[i]
    inner = 1
    for k in path.kernel[i + 1 :]:
        inner *= k
    tap = torch.arange(path.n_taps, device=x.device) // inner % path.kernel[i]
    return (tap[:, None] * path.dilations[i] + out).to(x.dtype)


KERNELS: Final[TorchKernels] = {
    (ONNX, "Conv"): TorchKernel(conv, REALS, images=(1,), refuses=spatial_only),
    (ONNX, "ConvTranspose"): TorchKernel(conv_transpose, REALS, refuses=spatial_only),
    (ONNX, "Col2Im"): TorchKernel(col2im, PLAIN, host=(1, 2)),
    (ONNX, "CausalConvWithState"): TorchKernel(causal_conv, REALS),
    (MICROSOFT, "CausalConvWithState"): TorchKernel(causal_conv, REALS),
    (MICROSOFT, "ConvTransposeWithDynamicPads"): TorchKernel(
        conv_transpose_with_pads, REALS, host=(2,), refuses=spatial_only
    ),
    (MICROSOFT, "FusedConv"): TorchKernel(fused_conv, REALS, images=(1,), refuses=spatial_only),
    (INTERNAL, "Conv"): TorchKernel(_channels_last(conv), TYPES, refuses=_refuses),
    (INTERNAL, "ConvTranspose"): TorchKernel(
        _channels_last(conv_transpose), TYPES, refuses=_refuses
    ),
    (INTERNAL, "ConvWeightGradient"): TorchKernel(weight_gradient, frozenset((F32,))),
    (INTERNAL, "DeformColumns"): TorchKernel(deform_columns, frozenset((F32,))),
}
