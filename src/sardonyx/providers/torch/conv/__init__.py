"""Convolutions in torch."""
