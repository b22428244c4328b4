"""Convolutions with channels last (NHWC): lowering rewrites Conv and ConvTranspose to them.

Images are [batch, *spatial, channels]. Weights keep the layout that ONNX gives them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op
from sardonyx.ops.arrays import Array, as_bf16
from sardonyx.ops.conv import standard as standard_conv
from sardonyx.ops.elementwise.chain import EPILOGUE, code_type, run_code


def channels_first(x: Fact) -> Fact:
    """Return the fact of an NHWC image as NCHW."""
    if x.rank < 2:
        raise ShapeError(f"x has rank {x.rank}, and needs batch and channels")
    return Fact(x.dtype, (x.dims[0], x.dims[-1], *x.dims[1:-1]))


def channels_last(x: Fact) -> Fact:
    """Return the fact of an NCHW image as NHWC."""
    return Fact(x.dtype, (x.dims[0], *x.dims[2:], x.dims[1]))


def _with_epilogue(standard: Op) -> Op:
    """Return a channels-last convolution with an epilogue: a code over its result and operands.

    With `bf16`, image and weights are rounded to bfloat16 first. Operands broadcast against the
    result [batch, *spatial, maps]; a bias is one of them.
    """
    attrs = {**standard.attrs, "code": EPILOGUE, "bf16": 0}
    inputs = "x:T w:T operands:T*"
    op = Op(standard.name, 1, inputs, "y:T", attrs=attrs, types={"T": FLOATS}, domain=INTERNAL)
    infer, reference = _rules(standard)

    @op.infer
    def _(g: Scope, x: Fact, w: Fact, *operands: Fact, **attrs: Any) -> Fact:
        code, _ = attrs.pop("code"), attrs.pop("bf16")
        y = channels_last(infer(g, channels_first(x), w, None, **attrs))
        return y.of(code_type(code, y.dtype))

    @op.reference
    def _(x: Array, w: Array, *operands: Array, **attrs: Any) -> Array:
        code = attrs.pop("code")
        if attrs.pop("bf16"):
            x, w = as_bf16(x), as_bf16(w)
        y = np.moveaxis(reference(np.moveaxis(x, -1, 1), w, **attrs), 1, -1)
        return run_code(code, (y, *operands)) if code else y

    return op


def _rules(standard: Op) -> tuple[Any, Any]:
    assert standard.infer_rule is not None
    assert standard.reference_rule is not None
    return standard.infer_rule, standard.reference_rule


conv = _with_epilogue(standard_conv.conv)


conv_transpose = _with_epilogue(standard_conv.conv_transpose)


OPS: Final = (conv, conv_transpose)
