"""Functions of onnxruntime's module itself: providers, versions, logging, global settings."""

from __future__ import annotations

from sardonyx.errors import NotFound, NotImplemented
from sardonyx.version import __version__


def get_available_providers() -> list[str]:
    """The providers that sessions here can use."""
    from sardonyx.providers import available

    return list(available())


def get_all_providers() -> list[str]:
    """Every provider name that onnxruntime knows, in its order."""
    from sardonyx.providers import ALL

    return list(ALL)


def get_device() -> str:
    """The best kind of device that sessions can use."""
    from sardonyx.providers.probe import cuda_may_work

    return "GPU" if cuda_may_work() else "CPU"


def get_version_string() -> str:
    """Our version."""
    return __version__


def get_build_info() -> str:
    """What was built, in one line."""
    import sardonyx._native as _native

    return f"Sardonyx {__version__}, native core {_native.version}"


def has_collective_ops() -> bool:
    """Whether ops over several processes are there: they are not."""
    return False


def set_seed(seed: int) -> None:
    """Seeds the random ops of nodes that have no seed of their own."""
    from sardonyx.ops.random.standard import set_seed as seed_ops

    seed_ops(seed)


def set_default_logger_severity(level: int) -> None:
    """Shows messages from this severity on: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal."""
    from sardonyx.base.log import set_severity

    set_severity(level)


def set_default_logger_verbosity(level: int) -> None:
    """How much of what is said at severity 0 is shown; there is one degree of it here."""
    if not isinstance(level, int):
        raise TypeError(f"a verbosity is a number, not {type(level).__name__}")


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Threads of sessions whose `use_per_session_threads` is off; 0: as many as CPUs."""
    from sardonyx.ort.options import set_global_threads

    set_global_threads(intra_op_num_threads, inter_op_num_threads)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Kept for programs that call it: there are no libraries to load ahead."""


def register_execution_provider_library(name: str, path: str) -> None:
    """Providers of onnxruntime's C interface cannot be loaded; the error says so."""
    raise NotImplemented(
        f"{path} is a library for onnxruntime's C interface, which Sardonyx does not have",
        hint="write the provider in Python",
    )


def unregister_execution_provider_library(name: str) -> None:
    """The counterpart of `register_execution_provider_library`."""
    raise NotFound(f"no provider library is registered as {name!r}")


def enable_telemetry_events() -> None:
    """Kept for programs that call it: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Kept for programs that call it: there is no telemetry."""


def print_debug_info() -> None:
    """Versions of everything that matters for a bug report."""
    import platform

    import ml_dtypes
    import numpy

    print(f"{get_build_info()}\nPython {platform.python_version()}\nnumpy {numpy.__version__}")
    print(f"ml_dtypes {ml_dtypes.__version__}\n{platform.platform()}")
