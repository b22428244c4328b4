"""Building blocks of training artifacts, with the interface of onnxruntime.training.onnxblock.

Blocks edit an `onnx.ModelProto`, so this package, unlike the rest of Sardonyx, imports `onnx`.
"""

from __future__ import annotations

from sardonyx.training.onnxblock import blocks, loss, optim
from sardonyx.training.onnxblock.base_model import base, custom_op_library, empty_base
from sardonyx.training.onnxblock.blocks import Block
from sardonyx.training.onnxblock.parameters import load_checkpoint_to_model, save_checkpoint
from sardonyx.training.onnxblock.training_block import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
