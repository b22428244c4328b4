"""Training: `onnxruntime.training.ortmodule`, implemented by `sardonyx.train`."""
