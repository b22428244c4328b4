"""Building blocks of training artifacts, implemented by `sardonyx.training`."""

from sardonyx.training.onnxblock import (
    Block,
    ForwardBlock,
    TrainingBlock,
    base,
    custom_op_library,
    empty_base,
    load_checkpoint_to_model,
    save_checkpoint,
)

from . import blocks, loss, optim

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
