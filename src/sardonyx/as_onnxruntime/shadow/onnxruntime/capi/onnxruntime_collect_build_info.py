"""Libraries of CUDA that onnxruntime looks for."""

from __future__ import annotations


def find_cudart_versions(
    build_env: bool = False, build_cuda_version: str | None = None
) -> list[int]:
    """Versions of CUDA's runtime: none is used."""
    return []
