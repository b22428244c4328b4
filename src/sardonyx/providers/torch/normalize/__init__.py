"""Normalizations in torch."""
