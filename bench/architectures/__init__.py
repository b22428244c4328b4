"""Networks and pipelines beside those of the zoo, exported and compared with onnxruntime."""
