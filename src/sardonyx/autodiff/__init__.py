"""Automatic differentiation: gradient graphs from the ops' gradient rules, and recomputation."""
