"""Preloads libraries in some builds of onnxruntime; here there are none."""
