"""N-bit weights in blocks: matrix products and table lookups."""
