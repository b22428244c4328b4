"""onnxruntime's interface except sessions: options, OrtValues, devices, enums, adapters."""
