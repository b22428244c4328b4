"""Blocks, implemented by `sardonyx.training`."""

from sardonyx.training.onnxblock.blocks import *  # noqa: F403
