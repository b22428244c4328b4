"""Attention, rotary embeddings and key-value caches."""
