"""Blocks of whole models, implemented by `sardonyx.training`."""

from sardonyx.training.onnxblock.training_block import ForwardBlock, TrainingBlock

__all__ = ["ForwardBlock", "TrainingBlock"]
