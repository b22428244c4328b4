"""Ops that select elements by value: TopK, NonZero, Unique, NonMaxSuppression."""
