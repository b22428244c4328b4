"""Sampling at fractional positions: GridSample, AffineGrid, RoiAlign, MaxRoiPool, CropAndResize."""
