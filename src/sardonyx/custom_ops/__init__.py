"""Operators declared by users, in Python or in C."""
