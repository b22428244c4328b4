"""Save: a graph as an ONNX file, in the lowest opset and IR version that mean the same.

onnxruntime 1.31.1 loads what is saved up to opset 26 and IR version 13.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import frozen
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.load.model import Model
from sardonyx.save.graph import GraphWriter
from sardonyx.save.header import model_message
from sardonyx.save.since import Versions
from sardonyx.save.tensor import DataFile, External
from sardonyx.save.wire import Message

MAX_BYTES: Final = 2**31 - 1  # of a protobuf message; larger ones no reader takes
_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
_DATA_MIN: Final = "session.optimized_model_external_initializers_min_size_in_bytes"


@frozen
class SaveOptions:
    """Where to write, and which weights go into a file of their own."""

    path: str
    data_file: str | None = None  # external data, beside the model; None: weights stay in the model
    min_bytes: int = 1024  # smaller tensors stay in the model even so


def save(model: Model, options: SaveOptions) -> None:
    """Writes the model with its graph as it is now, whole or not at all."""
    path = os.path.abspath(os.fsdecode(options.path))
    if os.path.isdir(path):
        raise InvalidArgument(f"{path} is a folder", hint="name the file to save the model to")
    data_path = None if options.data_file is None else _data_path(path, options.data_file)
    file = None
    if data_path is not None:
        location = os.path.relpath(data_path, os.path.dirname(path))
        file = DataFile(location, options.min_bytes)
    message = serialized(model, file)
    _check_size(message, file)
    with _reporting(path), contextlib.ExitStack() as stack:
        model_file = stack.enter_context(writing(path))
        # Entered last, so renamed first: a model never names data that is not there yet.
        if file is not None and data_path is not None and not file.is_empty:
            file.write(stack.enter_context(writing(data_path)))
        message.write(model_file)


def serialized(model: Model, file: External | None) -> Message:
    """The model as a message that can be written; tensors are where `file` says, if it does."""
    versions = Versions(model.opsets)
    graph = GraphWriter(versions, file).main(model)
    return model_message(model, graph, versions.ir, versions.opsets)


def _check_size(message: Message, file: DataFile | None) -> None:
    if message.size <= MAX_BYTES:
        return
    if file is None:
        hint = f"set {_DATA_FILE} to the name of a file for the weights"
    else:
        hint = f"lower {_DATA_MIN}, which is {file.min_bytes}"
    raise InvalidArgument(
        f"the saved model would have {message.size} bytes, and a file holds at most {MAX_BYTES}",
        hint=hint,
    )


def _data_path(path: str, name: str) -> str:
    """Where the data file goes: in or below the model's folder, links followed."""
    folder = os.path.dirname(path)
    data_path = os.path.normpath(os.path.join(folder, name))
    if not name or "\0" in name or os.path.isabs(name) or not _is_below(data_path, folder):
        raise InvalidArgument(
            f"{_DATA_FILE} is {name!r}, which is no path in or below {folder}",
            hint="give a plain file name",
        )
    if data_path == path or os.path.isdir(data_path):
        taken = "the model itself" if data_path == path else "a folder"
        raise InvalidArgument(
            f"{_DATA_FILE} is {name!r}, which is {taken}", hint="give another name"
        )
    return data_path


def _is_below(path: str, folder: str) -> bool:
    root = os.path.realpath(folder).rstrip(os.sep)
    return os.path.realpath(path).startswith(root + os.sep)


@contextlib.contextmanager
def _reporting(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Fail(
            f"the model could not be saved to {path}: {reason}",
            hint="choose a folder that can be written to",
        ) from error
