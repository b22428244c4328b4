"""Fusions and conversions of transformers, implemented by `sardonyx.transformers`."""
