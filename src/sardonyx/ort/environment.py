"""Module-level functions of onnxruntime: providers, versions, logging, global settings."""

from __future__ import annotations

from sardonyx.errors import NotFound, NotImplemented
from sardonyx.version import __version__


def get_available_providers() -> list[str]:
    """Return the providers that sessions can use."""
    from sardonyx.providers import available

    return list(available())


def get_all_providers() -> list[str]:
    """Return every provider name of onnxruntime, in its order."""
    from sardonyx.providers import ALL

    return list(ALL)


def get_device() -> str:
    """Return the best device type that sessions can use."""
    from sardonyx.providers.probe import cuda_may_work

    return "GPU" if cuda_may_work() else "CPU"


def get_version_string() -> str:
    """Return the version of Sardonyx."""
    return __version__


def get_build_info() -> str:
    """Return the versions of this build in one line, which begins as onnxruntime's does."""
    import sardonyx._native as _native

    return f"Sardonyx Build Info: version {__version__}, native core {_native.version}"


def has_collective_ops() -> bool:
    """Return False: there are no collective ops."""
    return False


def set_seed(seed: int) -> None:
    """Seed the random ops that have no seed attribute."""
    from sardonyx.ops.random.standard import set_seed as seed_ops

    seed_ops(seed)


def set_default_logger_severity(level: int) -> None:
    """Show messages of this severity and above: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal."""
    from sardonyx.base.log import set_severity

    set_severity(level)


def set_default_logger_verbosity(level: int) -> None:
    """Do nothing: severity 0 has a single verbosity."""
    if not isinstance(level, int):
        raise TypeError(f"a verbosity must be a number, got {type(level).__name__}")


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Set the threads of sessions without `use_per_session_threads`; 0: one per CPU.

    Sessions with threads of their own are an error from then on, until both numbers are set to 0.
    """
    from sardonyx.ort.options import set_global_threads

    set_global_threads(intra_op_num_threads, inter_op_num_threads)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Do nothing: for compatibility. There are no libraries to preload."""


def register_execution_provider_library(name: str, path: str) -> None:
    """Raise an error: providers for onnxruntime's C API are not supported."""
    raise NotImplemented(
        f"{path} is a library for onnxruntime's C interface, which Sardonyx does not have",
        hint="write the provider in Python",
    )


def unregister_execution_provider_library(name: str) -> None:
    """Raise an error: no library is registered."""
    raise NotFound(f"no provider library is registered as {name!r}")


def enable_telemetry_events() -> None:
    """Do nothing: for compatibility. There is no telemetry."""


def disable_telemetry_events() -> None:
    """Do nothing: for compatibility. There is no telemetry."""


def print_debug_info() -> None:
    """Print the versions that a bug report needs."""
    import platform

    import ml_dtypes
    import numpy

    print(f"{get_build_info()}\nPython {platform.python_version()}\nnumpy {numpy.__version__}")
    print(f"ml_dtypes {ml_dtypes.__version__}\n{platform.platform()}")
