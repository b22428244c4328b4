"""The TorchDynamo backend: ATen graphs of `torch.compile`, lowered to sessions.

`backend.py` is the entry point; nothing is imported here, because its modules import torch.
"""
