"""Ops on shapes."""
