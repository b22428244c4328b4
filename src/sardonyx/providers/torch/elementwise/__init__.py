"""Elementwise ops in torch."""
