"""Preparing features: scaling, imputing, encoding categories, and maps to tensors and back."""
