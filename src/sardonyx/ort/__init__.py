"""ONNX Runtime's interface: options, values, devices, enums."""
