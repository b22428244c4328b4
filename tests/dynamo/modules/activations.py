"""Activations, dropouts and paddings."""

from __future__ import annotations

import torch
from torch import nn

from tests.dynamo.modules.case import case, f32, function

X, IMAGE, LINE, VOLUME = f32(3, 4, 6), f32(2, 4, 5, 6), f32(2, 4, 7), f32(2, 3, 3, 4, 5)

_ACTIVATIONS = (
    nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh,
    nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid,
    nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.GLU,
)  # fmt: skip
_DRAWS = "how much it draws depends on data"

CASES = {
    **{kind.__name__: case(kind, X) for kind in _ACTIVATIONS},
    "GELU by tanh": case(lambda: nn.GELU("tanh"), X),
    "ELU in place": case(lambda: nn.Sequential(nn.Linear(6, 6), nn.ELU(0.5, inplace=True)), X),
    "LeakyReLU in place": case(
        lambda: nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU(0.2, inplace=True)), X
    ),
    "PReLU of channels": case(lambda: nn.PReLU(4), IMAGE),
    "RReLU": case(
        nn.RReLU,
        X,
        in_torch={
            "aten.rrelu_with_noise_functional.default": _DRAWS,
            "aten.rrelu_with_noise_backward.default": "as its forward op",
        },
    ),
    "Softplus steep": case(lambda: nn.Softplus(2.5, 1.0), X),
    "Threshold": case(lambda: nn.Threshold(0.2, -3), X),
    "Softmax": case(lambda: nn.Softmax(-1), X),
    "Softmax of an inner axis": case(lambda: nn.Softmax(1), X),
    "Softmax2d": case(nn.Softmax2d, IMAGE),
    "Softmin": case(lambda: nn.Softmin(1), X),
    "LogSoftmax": case(lambda: nn.LogSoftmax(2), X),
    "GLU of an inner axis": case(lambda: nn.GLU(1), X),
    "gumbel softmax": function(lambda x: nn.functional.gumbel_softmax(x, 0.7), X),
    "hard gumbel softmax": function(lambda x: nn.functional.gumbel_softmax(x, hard=True), X),
    "Dropout": case(lambda: nn.Dropout(0.3), X),
    "Dropout in place": case(
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3, inplace=True)), X
    ),
    "Dropout of all": case(lambda: nn.Dropout(1.0), X),
    "Dropout of none": case(lambda: nn.Dropout(0.0), X),
    "Dropout1d": case(nn.Dropout1d, LINE),
    "Dropout2d": case(nn.Dropout2d, IMAGE),
    "Dropout3d": case(nn.Dropout3d, VOLUME),
    "AlphaDropout": case(lambda: nn.AlphaDropout(0.2), X),
    "FeatureAlphaDropout": case(lambda: nn.FeatureAlphaDropout(0.2), IMAGE),
    "ConstantPad1d": case(lambda: nn.ConstantPad1d((2, 1), 0.5), LINE),
    "ConstantPad2d": case(lambda: nn.ConstantPad2d((1, 0, 2, -1), -1.0), IMAGE),
    "ConstantPad3d": case(lambda: nn.ConstantPad3d(1, 2.0), VOLUME),
    "ZeroPad2d": case(lambda: nn.ZeroPad2d((1, 2, 0, 3)), IMAGE),
    "ReflectionPad1d": case(lambda: nn.ReflectionPad1d((3, 2)), LINE),
    "ReflectionPad2d": case(lambda: nn.ReflectionPad2d((1, 2, 3, 0)), IMAGE),
    "ReflectionPad3d": case(lambda: nn.ReflectionPad3d(1), VOLUME),
    "ReplicationPad1d": case(lambda: nn.ReplicationPad1d((3, 2)), LINE),
    "ReplicationPad2d": case(lambda: nn.ReplicationPad2d((1, 2, 3, 0)), IMAGE),
    "ReplicationPad3d": case(lambda: nn.ReplicationPad3d(1), VOLUME),
    "CircularPad1d": case(lambda: nn.CircularPad1d((3, 2)), LINE),
    "CircularPad2d": case(lambda: nn.CircularPad2d((1, 2, 0, 3)), IMAGE),
    "CircularPad3d": case(lambda: nn.CircularPad3d(1), VOLUME),
    "Identity": case(lambda: nn.Sequential(nn.Identity(), nn.ReLU()), X),
    "a product of activations": function(
        lambda x: torch.sigmoid(x) * torch.tanh(x) + torch.relu(x) ** 2, X
    ),
}
