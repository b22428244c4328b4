"""CUDA libraries that onnxruntime searches for."""

from __future__ import annotations


def find_cudart_versions(
    build_env: bool = False, build_cuda_version: str | None = None
) -> list[int]:
    """Return no versions: the CUDA runtime is not used."""
    return []
