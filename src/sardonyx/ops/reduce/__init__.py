"""Reductions, arg reductions and cumulative ops."""
