"""Tools over models that programs import from `onnxruntime.tools`: they read and edit ModelProtos.

The modules have onnxruntime's names and functions. They rest on Sardonyx's own inference, passes
and conversions; the package onnx is imported for the objects that callers pass and get.
"""
