"""Convolutions, pooling and indices where torch's definitions differ from those of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.graph.op import INTERNAL, ONNX
from tests.op_cases import f32
from tests.oracle import difference

torch = pytest.importorskip("torch")
from sardonyx.providers.torch import gather, move, pooling  # noqa: E402 - torch may be missing
from tests.torch.test_internal import made  # noqa: E402

LOWER, UPPER = {"auto_pad": b"SAME_LOWER"}, {"auto_pad": b"SAME_UPPER"}
IMAGE, LINE, LAST = f32(1, 2, 6, 7), f32(1, 2, 9), f32(1, 6, 7, 3)
# Pads that differ on two sides, or are wider than torch's pools allow; what only dilation, rounding
# up or an asked size makes; empty results; channels last.
CASES: dict[str, tuple[tuple[str, str], tuple[Any, ...], dict[str, Any]]] = {
    "pads": (
        (ONNX, "Conv"),
        (f32(2, 4, 5, 6), f32(6, 2, 3, 2), f32(6)),
        {"group": 2, "pads": (2, 0, 1, 3)},
    ),
    "pads unread": ((ONNX, "Conv"), (LINE, f32(3, 2, 2)), {"pads": (0, 3), "strides": (4,)}),
    "same": ((ONNX, "Conv"), (IMAGE, f32(3, 2, 2, 2)), {**LOWER, "strides": (2, 1)}),
    "back": ((ONNX, "ConvTranspose"), (IMAGE, f32(2, 3, 3, 3), f32(3)), {"pads": (0, 1, 2, 1)}),
    "back to a size": (
        (ONNX, "ConvTranspose"),
        (f32(1, 2, 3), f32(2, 3, 3), f32(3)),
        {"output_shape": (9,)},
    ),
    "back to nothing": (
        (ONNX, "ConvTranspose"),
        (f32(1, 1, 1), f32(1, 1, 3)),
        {"dilations": (2,), "pads": (3, 3), "output_padding": (1,)},
    ),
    "places": (
        (ONNX, "MaxPool"),
        (IMAGE,),
        {"kernel_shape": (3, 3), "pads": (2, 0, 1, 2), "storage_order": 1},
    ),
    "wide pads": (
        (ONNX, "MaxPool"),
        (IMAGE,),
        {"kernel_shape": (2, 4), "dilations": (1, 2), "pads": (0, 3, 0, 3)},
    ),
    "mean": ((ONNX, "AveragePool"), (IMAGE,), {"kernel_shape": (3, 2), "pads": (2, 0, 1, 1)}),
    "mean up": (
        (ONNX, "AveragePool"),
        (LINE,),
        {
            "kernel_shape": (3,),
            "pads": (2, 1),
            "strides": (4,),
            "ceil_mode": 1,
            "count_include_pad": 1,
        },
    ),
    "mean dilated": (
        (ONNX, "AveragePool"),
        (LINE,),
        {"kernel_shape": (3,), "dilations": (3,), "pads": (2, 2)},
    ),
    "mean of little": (
        (ONNX, "AveragePool"),
        (f32(1, 2, 1, 5, 4),),
        {**UPPER, "kernel_shape": (3, 3, 4)},
    ),
    "last conv": ((INTERNAL, "Conv"), (LAST, f32(4, 3, 3, 3)), {"pads": (1, 1, 1, 1)}),
    "last back": ((INTERNAL, "ConvTranspose"), (LAST, f32(3, 2, 2, 2)), {"strides": (2, 2)}),
    "last max": ((INTERNAL, "MaxPool"), (LAST,), {"kernel_shape": (2, 2)}),
    "last mean": (
        (INTERNAL, "AveragePool"),
        (LAST,),
        {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)},
    ),
    "last norm": ((INTERNAL, "LpPool"), (f32(1, 6, 3),), {"kernel_shape": (3,), "p": 3}),
    "weight gradient": (
        (INTERNAL, "ConvWeightGradient"),
        (f32(2, 4, 7, 6), f32(2, 6, 3, 2)),
        {"kernel_shape": (3, 2), "strides": (2, 3), "pads": (0, 0, 0, 1), "group": 2},
    ),
    "last weight gradient": (
        (INTERNAL, "ConvWeightGradient"),
        (f32(2, 7, 6, 4), f32(2, 3, 2, 6)),
        {
            "kernel_shape": (3, 2),
            "strides": (2, 3),
            "pads": (0, 0, 0, 1),
            "group": 2,
            "channels_last": 1,
        },
    ),
    "last maxima with indices": (
        (INTERNAL, "IndexedMaxPool"),
        (LAST,),
        {"kernel_shape": (2, 3), "strides": (2, 1), "pads": (1, 0, 0, 2)},
    ),
    "columns": (
        (INTERNAL, "DeformColumns"),
        (f32(1, 2, 5, 5), f32(1, 16, 4, 4)),
        {"kernel_shape": (2, 2), "offset_group": 2},
    ),
    "a large filler": (
        (ONNX, "Pad"),
        (np.arange(3), np.array([1, 1]), np.array(2**62 + 1), None),
        {},
    ),
    "one tuple": ((ONNX, "GatherND"), (f32(3, 2), np.array([1, -1])), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    found, wanted = made(*CASES[name])
    assert not difference(found, wanted, 16)


FAR = torch.tensor([[7]])
X, U = torch.ones(2, 3), torch.ones(1, 1)
ONE = {"axis": 1, "reduction": b"none"}
WRONG: dict[str, Any] = {
    "Gather": lambda: gather.gather(X, FAR, axis=0),
    "GatherElements": lambda: gather.gather_elements(X, FAR, axis=0),
    "GatherND": lambda: gather.gather_nd(X, FAR, batch_dims=0),
    "ScatterElements": lambda: gather.scatter_elements(X, FAR, U, **ONE),
    "ScatterND": lambda: gather.scatter_nd(X, FAR, X[:1], reduction=b"add"),
    "TensorScatter": lambda: gather.tensor_scatter(X, X, FAR[0].expand(2), axis=1, mode=b"linear"),
    "an empty axis": lambda: gather.gather(X[:0], FAR - 7, axis=0),
    "MaxUnpool": lambda: pooling.max_unpool(U[None], FAR[None], None, kernel_shape=(2,)),
    "ReverseSequence": lambda: move.reverse_sequence(
        X, FAR[0].expand(3), batch_axis=1, time_axis=0
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_index_out_of_range_is_an_error_on_the_cpu(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"outside|fit|no elements"):
        WRONG[name]()


def test_an_index_out_of_range_wraps_on_devices() -> None:
    """A kernel on a GPU that met one would end the process."""
    tensor = torch.tensor([-4, 5, 1]).as_subclass(_Elsewhere)
    assert gather.within(tensor, 3, 0).tolist() == [2, 2, 1]


class _Elsewhere(torch.Tensor):
    """A tensor on the CPU that says it is not."""

    @property
    def device(self) -> Any:
        return torch.device("cuda")
