"""Compares the values of two models, or of one model run in two ways, node by node."""
