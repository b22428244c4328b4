"""Strings, n-grams and encoded images."""
