"""Softmax, LogSoftmax and Hardmax."""
