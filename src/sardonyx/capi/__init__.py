"""The module layout of onnxruntime.capi, for programs that import from there."""
