"""Weights of 2, 4 and 8 bits: matmuls and gathers that read them as they are stored."""
