"""Ops on whole matrices: determinant, inverse, distances and dynamic time warping."""
