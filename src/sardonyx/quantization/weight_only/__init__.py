"""Quantizes the weights of MatMul and Gather to a few bits; activations stay as they are."""
