"""The modules that onnxruntime's own are found under; programs import from some of them."""
