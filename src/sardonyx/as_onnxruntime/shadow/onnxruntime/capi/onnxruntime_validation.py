"""Checks that onnxruntime makes of the system it runs on."""

from __future__ import annotations

from .build_and_package_info import __version__, package_name


def check_distro_info() -> None:
    """Any Linux on which Sardonyx is installed will do."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Name, version, and version of CUDA."""
    return package_name, __version__, ""


def check_training_module() -> tuple[bool, str, str, str]:
    """Whether onnxruntime.training is there (it is not), then what the package is."""
    return False, *get_package_name_and_version_info()
