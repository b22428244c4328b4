"""onnxruntime's checks of the system."""

from __future__ import annotations

from .build_and_package_info import __version__, package_name


def check_distro_info() -> None:
    """Do nothing: any Linux is supported."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Return the name, version, and CUDA version of the package."""
    return package_name, __version__, ""


def check_training_module() -> tuple[bool, str, str, str]:
    """Return False (there is no onnxruntime.training), then the package information."""
    return False, *get_package_name_and_version_info()
