"""Convolutions with what follows them, and those whose images have their channels last.

Moving the channels makes a view, and torch convolves it in the order in which it lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from sardonyx.graph.graph import Node
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.elementwise.chain import TYPES, Code
from sardonyx.ops.elementwise.fused_activation import ACTIVATION_ATTRS
from sardonyx.providers.torch.conv.standard import conv, conv_relu, conv_transpose, has_relu
from sardonyx.providers.torch.elementwise.chain import run_code, why_unsupported
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.matmul import apply_activation
from sardonyx.providers.torch.sliding_window import spatial_only

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
    if name == b"Clip":
        return y.clamp(*params[:2])
    activation = dict.fromkeys(("activation_alpha", "activation_beta", "activation_gamma"))
    if name:
        keys = ACTIVATION_ATTRS[name.decode()]
        activation.update((f"activation_{k}", v) for k, v in zip(keys, params, strict=False))
    return apply_activation(y, name, activation)


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


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "FusedConv"): TorchKernel(fused_conv, REALS, images=(1,), refuses=spatial_only),
    (INTERNAL, "Conv"): TorchKernel(_channels_last(conv), TYPES, refuses=_refuses),
    (INTERNAL, "ConvTranspose"): TorchKernel(
        _channels_last(conv_transpose), TYPES, refuses=_refuses
    ),
}
