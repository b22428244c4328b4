"""gRPC: the service of the Open Inference Protocol v2, with Triton's repository calls."""
