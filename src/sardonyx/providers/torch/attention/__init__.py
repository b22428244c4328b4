"""Attention in torch."""
