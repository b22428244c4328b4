"""Loads libraries ahead where a build of onnxruntime needs them: there are none."""
