"""Checkpoints of parameters, implemented by `sardonyx.training`."""

from sardonyx.training.onnxblock.parameters import load_checkpoint_to_model, save_checkpoint

__all__ = ["load_checkpoint_to_model", "save_checkpoint"]
