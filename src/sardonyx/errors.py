"""Errors with onnxruntime's class names and codes; each says what, where, and what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

# Exceptions of code that received input it was not written for, such as a hostile pack.
FAULTS: Final = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)


class Recoverable(Exception):
    """Raised and caught inside the runtime, which then takes a fallback: no user sees it."""


class SardonyxError(Exception):
    """What is wrong, and where. The base class of every error that a user can cause."""

    code: int = 1
    label: str = "FAIL"

    def __init__(self, what: str, **where: object) -> None:
        super().__init__(what)
        self.what = what
        self.where = {key: str(value) for key, value in where.items()}

    def at(self, **where: object) -> SardonyxError:
        """Add context to the error and return it; keys that are set already keep their values."""
        self.where = {**{key: str(value) for key, value in where.items()}, **self.where}
        return self

    def __str__(self) -> str:
        lines = [f"[ONNXRuntimeError] : {self.code} : {self.label} : {self.what}"]
        lines += [f"  {key:<6} {value}" for key, value in self.where.items()]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where)


def _rebuild(kind: type[SardonyxError], what: str, where: dict[str, str]) -> SardonyxError:
    return kind(what).at(**where)


class Fail(SardonyxError):
    """A failure that no other class describes."""


class InvalidArgument(SardonyxError):
    """An argument does not fit the model."""

    code, label = 2, "INVALID_ARGUMENT"


class NoSuchFile(SardonyxError):
    """The model file, or a file it refers to, does not exist."""

    code, label = 3, "NO_SUCHFILE"


class NoModel(SardonyxError):
    """A session was used before it had a model."""

    code, label = 4, "NO_MODEL"


class EngineError(SardonyxError):
    """A provider's engine failed."""

    code, label = 5, "ENGINE_ERROR"


class RuntimeException(SardonyxError):
    """A node failed while the model ran."""

    code, label = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(SardonyxError):
    """The bytes are not an ONNX model."""

    code, label = 7, "INVALID_PROTOBUF"


class ModelLoaded(SardonyxError):
    """A session that has a model is loaded with another."""

    code, label = 8, "MODEL_LOADED"


class NotImplemented(SardonyxError):  # the name that programs written for onnxruntime catch
    """The model needs something that no provider implements."""

    code, label = 9, "NOT_IMPLEMENTED"


class InvalidGraph(SardonyxError):
    """The model contradicts itself or the ONNX standard."""

    code, label = 10, "INVALID_GRAPH"


class EPFail(SardonyxError):
    """An execution provider failed."""

    code, label = 11, "EP_FAIL"


class ModelLoadCanceled(SardonyxError):
    """The load was cancelled by its flag."""

    code, label = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(SardonyxError):
    """The model must be compiled first, and compiling is off."""

    code, label = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(SardonyxError):
    """The requested object does not exist."""

    code, label = 14, "NOT_FOUND"


class DeviceReset(SardonyxError):
    """A device was reset while it was in use."""

    code, label = 15, "DEVICE_RESET"


class ValueFault(InvalidArgument, RuntimeError):
    """An invalid value or binding; also a RuntimeError, as programs for onnxruntime expect."""


class ShapeError(InvalidGraph):
    """Shapes or types that do not fit together."""


class InternalError(Fail):
    """A broken invariant of our own."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n  please report this: it is a bug in sardonyx"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory; mmap raises an OSError with ENOMEM for it."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )


def as_sardonyx_error(error: Exception, doing: str, **where: object) -> SardonyxError:
    """Return the SardonyxError for any exception that was raised while `doing` something.

    Out of memory, too deep nesting and errors of the system are not bugs; all other exceptions
    become an InternalError.
    """
    if isinstance(error, SardonyxError):
        return error.at(**where)
    if is_out_of_memory(error):
        detail = f": {error}" if str(error) else ""
        return RuntimeException(f"out of memory while {doing}{detail}", **where)
    if isinstance(error, RecursionError):
        return InvalidGraph(f"the model nests too deep: {error} while {doing}", **where)
    if isinstance(error, OSError):
        return Fail(f"the system failed while {doing}: {error}", **where)
    return InternalError(f"{type(error).__name__} while {doing}: {error}", **where)


@contextlib.contextmanager
def located(**where: object) -> Iterator[None]:
    """Add context to any SardonyxError raised in the block."""
    try:
        yield
    except SardonyxError as error:
        error.at(**where)
        raise
