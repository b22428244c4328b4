"""Gradients of convolutions, as gradient graphs spell them, become the ops that have kernels."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder
from sardonyx.ops.sliding_window import window_of
from sardonyx.passes.rule import P, hole, need, present, rule

x, dy = hole("x"), hole("dy")
_CONV: Final = P.Conv(x, dy).named("conv")


def _swapped(value: Value) -> Value:
    """The value whose first two axes a Transpose exchanged; abandons the rewrite for any other."""
    node = present(value.node, "not a Transpose")
    perm = node.attrs.get("perm") if node.op.name == "Transpose" else None
    need(
        perm is not None and perm == (1, 0, *range(2, len(perm))),
        "the Transpose does not swap batch and channels",
    )
    return input_of(node, 0)


def _drops_only_ends(cut: Node) -> bool:
    """Whether a Slice keeps the first elements of the axes that it shortens."""
    starts, steps = input_of(cut, 1).tensor.ints, optional_input(cut, 4)
    ones = () if steps is None else steps.tensor.ints
    return starts is not None and not any(starts) and ones is not None and set(ones) <= {1}


@rule(
    P.Transpose(_CONV).named("root"),
    P.Transpose(P.Slice(_CONV, rest=True).named("cut")).named("root"),
)
def conv_weight_gradient(
    b: Builder, x: Value, dy: Value, conv: Node, root: Node, cut: Node | None = None
) -> Value:
    """A Conv of the image with dy as its kernel is the gradient with respect to the weights.

    As a Conv it would have few channels (the batch) and a kernel as large as the image, for which
    no algorithm is fast: 1.6 ms instead of 0.5 for the first layer of a ResNet.
    """
    image, grad = _swapped(x), _swapped(dy)
    _swapped(root.outputs[0])
    need(x.tensor.dtype is F32 and conv.attrs["group"] == 1, "no kernel")
    need(conv.attrs["auto_pad"] == b"NOTSET", "the pads follow from sizes")
    need(cut is None or _drops_only_ends(cut), "the Slice drops leading taps")
    sizes = present(image.tensor.static, "the image's sizes are open")
    outs = present(grad.tensor.static, "the gradient's sizes are open")
    kernel = present(root.outputs[0].tensor.static, "the kernel's sizes are open")[2:]
    # Strides and dilations exchange roles; pads stay.
    attrs: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": conv.attrs["dilations"],
        "dilations": conv.attrs["strides"],
        "pads": conv.attrs["pads"],
    }
    need(
        window_of(kernel, attrs).outs(sizes[2:]) == outs[2:],
        "the kernel is larger than this convolution computes",
    )
    need(min(*sizes, *outs, sizes[1] - 1) > 0, "one channel, or empty")
    return b.ConvWeightGradient(image, grad, domain=INTERNAL, **attrs)


RULES: Final[tuple[Any, ...]] = conv_weight_gradient
