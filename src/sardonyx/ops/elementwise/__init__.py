"""Elementwise ops: arithmetic, logic, activations, casts, and fused chains of them."""
