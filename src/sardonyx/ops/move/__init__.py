"""Ops that move elements: Transpose, Concat, Slice, Pad and others."""
