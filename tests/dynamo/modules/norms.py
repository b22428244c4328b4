"""Normalizations, and reparametrized weights."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrizations

from tests.dynamo.modules.case import case, f32, function

IMAGE, LINE, VOLUME, ROWS = f32(3, 4, 5, 6), f32(3, 4, 7), f32(2, 4, 3, 4, 5), f32(5, 4)

CASES = {
    "batch norm 1d": case(lambda: nn.BatchNorm1d(4), ROWS),
    "batch norm 1d of sequences": case(lambda: nn.BatchNorm1d(4, momentum=0.3), LINE),
    "batch norm 2d": case(lambda: nn.BatchNorm2d(4), IMAGE),
    "batch norm 2d plain": case(lambda: nn.BatchNorm2d(4, affine=False), IMAGE),
    "batch norm 2d cumulative": case(lambda: nn.BatchNorm2d(4, momentum=None), IMAGE),
    "batch norm 2d of the batch": case(lambda: nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    "batch norm 3d": case(lambda: nn.BatchNorm3d(4, eps=1e-3), VOLUME),
    "layer norm": case(lambda: nn.LayerNorm(7), LINE),
    "layer norm of images": case(lambda: nn.LayerNorm((4, 5, 6)), IMAGE),
    "layer norm without bias": case(lambda: nn.LayerNorm(7, bias=False), LINE),
    "layer norm plain": case(lambda: nn.LayerNorm(7, elementwise_affine=False), LINE),
    "group norm": case(lambda: nn.GroupNorm(2, 4), IMAGE),
    "group norm plain": case(lambda: nn.GroupNorm(4, 4, affine=False), LINE),
    "instance norm 1d": case(lambda: nn.InstanceNorm1d(4), LINE),
    "instance norm 2d": case(lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "instance norm 2d tracked": case(lambda: nn.InstanceNorm2d(4, track_running_stats=True), IMAGE),
    "instance norm 3d": case(lambda: nn.InstanceNorm3d(4), VOLUME),
    "rms norm": case(lambda: nn.RMSNorm(7), LINE),
    "rms norm plain": case(lambda: nn.RMSNorm((5, 6), 1e-3, elementwise_affine=False), IMAGE),
    "local response": case(lambda: nn.LocalResponseNorm(3), IMAGE),
    "local response of sequences": case(lambda: nn.LocalResponseNorm(2, 0.1, 0.5, 2.0), LINE),
    "cross map": case(
        lambda: nn.CrossMapLRN2d(3), IMAGE, uncaptured="its Python function resizes tensors"
    ),
    "weight norm": case(lambda: parametrizations.weight_norm(nn.Linear(4, 3)), ROWS),
    "weight norm of columns": case(
        lambda: parametrizations.weight_norm(nn.Linear(4, 3), dim=1), ROWS
    ),
    "weight norm by hooks": case(lambda: nn.utils.weight_norm(nn.Linear(4, 3)), ROWS),
    "spectral norm": case(lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), ROWS),
    "spectral norm of convolutions": case(
        lambda: parametrizations.spectral_norm(nn.Conv2d(4, 3, 3)), IMAGE
    ),
    "normalize": function(lambda x: nn.functional.normalize(x, dim=1), IMAGE),
    "normalize L1": function(lambda x: nn.functional.normalize(x, p=1, dim=-1), LINE),
}
