"""N-bit weights in torch."""
