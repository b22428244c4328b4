"""Lowerings of ATen ops, by family."""
