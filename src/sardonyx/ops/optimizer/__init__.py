"""Optimizers: updates of parameters by their gradients, and the other nodes of a training step."""
