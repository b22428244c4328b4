"""Quantized ops in torch."""
