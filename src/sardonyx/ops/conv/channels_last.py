"""Convolutions with channels last (NHWC): lowering rewrites Conv and ConvTranspose to them.

Images are [batch, *spatial, channels]. Weights keep the layout that ONNX gives them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Infer, Op
from sardonyx.ops.arrays import Array, as_bf16
from sardonyx.ops.conv import standard as standard_conv
from sardonyx.ops.elementwise.chain import EPILOGUE, code_type, run_code
from sardonyx.ops.inference import channels_first, channels_last


def _with_epilogue(standard: Op, infer: Infer) -> Op:
    """Return a channels-last convolution with an epilogue: a code over its result and operands.

    With `bf16`, image and weights are rounded to bfloat16 first. Operands broadcast against the
    result [batch, *spatial, out_channels]; a bias is one of them.
    """
    attrs = {**standard.attrs, "code": EPILOGUE, "bf16": 0}
    inputs = "x:T w:T operands:T*"
    op = Op(standard.name, 1, inputs, "y:T", attrs=attrs, types={"T": FLOATS}, domain=INTERNAL)

    @op.infer
    def _(g: Scope, x: Fact, w: Fact, *operands: Fact, **attrs: Any) -> Fact:
        code, _ = attrs.pop("code"), attrs.pop("bf16")
        y = channels_last(infer(g, channels_first(x), w, None, **attrs))
        return y.with_dtype(code_type(code, y.dtype))

    @op.reference
    def _(x: Array, w: Array, *operands: Array, **attrs: Any) -> Array:
        code = attrs.pop("code")
        if attrs.pop("bf16"):
            x, w = as_bf16(x), as_bf16(w)
        y = np.moveaxis(standard.run((np.moveaxis(x, -1, 1), w), attrs)[0], 1, -1)
        return run_code(code, (y, *operands)) if code else y

    return op


conv = _with_epilogue(standard_conv.conv, standard_conv.infer_conv)
conv_transpose = _with_epilogue(standard_conv.conv_transpose, standard_conv.infer_transposed)

OPS: Final = (conv, conv_transpose)
