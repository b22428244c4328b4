"""Ops on whole matrices: Det, Inverse, CDist, DynamicTimeWarping."""
