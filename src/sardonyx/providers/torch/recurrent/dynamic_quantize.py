"""DynamicQuantizeLSTM."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from sardonyx.graph.dtype import F32, I8, I32, U8
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.arrays import filled
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.quantize.matmul_conv import dynamic_integer_matmul
from sardonyx.providers.torch.recurrent.standard import activations_of, lstm_step, run_layer

_BYTES: Final = frozenset((I8, U8))


def dynamic_lstm(*tensors: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """LSTM whose inputs and states are dynamically quantized before each matmul."""
    x, w, r, b, lens, initial_h, initial_c, p, *quantization = filled(tensors, 12)
    w_scale, w_zero, r_scale, r_zero = quantization
    functions = activations_of(attrs, 3, w.shape[0])

    def quantized_matmul(x: Tensor, q: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
        total, x_scale = dynamic_integer_matmul(x, q, zero)
        return total * (x_scale * scale)

    def make_step(i: int, x: Tensor) -> tuple[Tensor, Any]:
        gates = quantized_matmul(x, w[i], w_scale[i], w_zero[i])
        if b is not None:
            gates = gates + b[i].view(2, -1).sum(0)
        peepholes = None if p is None else p[i]
        step = lstm_step(
            lambda h: quantized_matmul(h, r[i], r_scale[i], r_zero[i]),
            peepholes,
            functions[i],
            attrs["input_forget"],
        )
        return gates, step

    return run_layer(x, lens, (initial_h, initial_c), r.shape[1], make_step, attrs)


_TYPES: Final = _BYTES | {F32, I32}


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "DynamicQuantizeLSTM"): TorchKernel(dynamic_lstm, _TYPES),
}
