"""The Open Inference Protocol v2: requests from bytes, responses to bytes, without I/O."""
