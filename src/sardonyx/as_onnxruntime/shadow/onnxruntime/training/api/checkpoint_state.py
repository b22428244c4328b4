"""The state of a training run, implemented by `sardonyx.training`."""

from sardonyx.training.checkpoint_state import CheckpointState, Parameter, Parameters, Properties

__all__ = ["CheckpointState", "Parameter", "Parameters", "Properties"]
