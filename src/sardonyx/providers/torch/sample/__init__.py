"""Sampling at fractional positions in torch."""
