"""Quantizes the weights of MatMul and Gather to n bits; activations stay as they are."""
