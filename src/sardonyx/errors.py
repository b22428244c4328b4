"""Errors with onnxruntime's class names and codes; each says what, where, and what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

# Exceptions of code that received input it was not written for, such as a hostile pack.
UNEXPECTED_ERRORS: Final = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)


class Recoverable(Exception):
    """Raised and caught inside the runtime, which then takes a fallback: no user sees it."""


class SardonyxError(Exception):
    """What is wrong, and where. The base class of every error that a user can cause."""

    code: int = 1
    label: str = "FAIL"

    def __init_subclass__(cls, code: int = 0, label: str = "") -> None:
        """Set onnxruntime's status code and its name; a subclass without them inherits both."""
        if code:
            cls.code, cls.label = code, label

    def __init__(self, what: str, **where: object) -> None:
        super().__init__(what)
        self.what = what
        self.where = {key: str(value) for key, value in where.items()}

    def add_context(self, **where: object) -> SardonyxError:
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
    return kind(what).add_context(**where)


class Fail(SardonyxError):
    """A failure that no other class describes."""


class InvalidArgument(SardonyxError, code=2, label="INVALID_ARGUMENT"):
    """An argument does not fit the model."""


class NoSuchFile(SardonyxError, code=3, label="NO_SUCHFILE"):
    """The model file, or a file it refers to, does not exist."""


class NoModel(SardonyxError, code=4, label="NO_MODEL"):
    """A session was used before it had a model."""


class EngineError(SardonyxError, code=5, label="ENGINE_ERROR"):
    """A provider's engine failed."""


class RuntimeException(SardonyxError, code=6, label="RUNTIME_EXCEPTION"):
    """A node failed while the model ran."""


class InvalidProtobuf(SardonyxError, code=7, label="INVALID_PROTOBUF"):
    """The bytes are not an ONNX model."""


class ModelLoaded(SardonyxError, code=8, label="MODEL_LOADED"):
    """A session that has a model is loaded with another."""


class NotImplemented(
    SardonyxError, code=9, label="NOT_IMPLEMENTED"
):  # the name that programs written for onnxruntime catch
    """The model needs something that no provider implements."""


class UnknownOp(NotImplemented, Fail):
    """An op that is not registered; onnxruntime calls this Fail."""


class InvalidGraph(SardonyxError, code=10, label="INVALID_GRAPH"):
    """The model contradicts itself or the ONNX standard."""


class EPFail(SardonyxError, code=11, label="EP_FAIL"):
    """An execution provider failed."""


class ModelLoadCanceled(SardonyxError, code=12, label="MODEL_LOAD_CANCELED"):
    """The load was cancelled by its flag."""


class ModelRequiresCompilation(SardonyxError, code=13, label="MODEL_REQUIRES_COMPILATION"):
    """The model must be compiled first, and compiling is off."""


class NotFound(SardonyxError, code=14, label="NOT_FOUND"):
    """The requested object does not exist."""


class DeviceReset(SardonyxError, code=15, label="DEVICE_RESET"):
    """A device was reset while it was in use."""


class ValueFault(InvalidArgument, RuntimeError):
    """An invalid value or binding; also a RuntimeError, as programs for onnxruntime expect."""


class ShapeError(InvalidGraph):
    """Shapes or types that do not fit together."""


class InternalError(Fail):
    """A broken invariant of Sardonyx itself."""

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
        return error.add_context(**where)
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
        error.add_context(**where)
        raise
