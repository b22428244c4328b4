"""Saves a graph as an ONNX or .ort file, in the lowest opset and IR version that express it.

onnxruntime 1.31.1 loads what is saved up to opset 26 and IR version 13.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import Final

import sardonyx._native as native
from sardonyx.base.atomic_file import writing
from sardonyx.base.protobuf_wire import Message
from sardonyx.base.records import frozen
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.graph.const import Source
from sardonyx.load.model import Model
from sardonyx.load.source import is_below
from sardonyx.save.graph import GraphWriter
from sardonyx.save.model import model_message
from sardonyx.save.since import Versions
from sardonyx.save.tensor import DataFile, External

MAX_BYTES: Final = 2**31 - 1  # the limit of protobuf messages
_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
_DATA_MIN: Final = "session.optimized_model_external_initializers_min_size_in_bytes"


@frozen
class SaveOptions:
    """Where to save, and which weights become external data."""

    path: str
    data_file: str | None = None  # with external data, beside the model; None: weights stay in it
    min_bytes: int = 1024  # smaller tensors stay in the model
    is_ort_format: bool = False  # a FlatBuffer for onnxruntime, instead of ONNX
    opset: int = 0  # of ai.onnx, if the model does not need a newer one
    spells_out: bool = False  # attributes with their defaults are written as well


def save(model: Model, options: SaveOptions, external: Collection[Source] = ()) -> None:
    """Write the model with its current graph, atomically; `external` are its data files so far."""
    path = os.path.abspath(os.fsdecode(options.path))
    if os.path.isdir(path):
        raise InvalidArgument(f"{path} is a folder", hint="name the file to save the model to")
    if options.is_ort_format:
        data = ort_bytes(model, options.opset)
        with _reporting(path), writing(path) as out:
            out.write(data)
        return
    data_path = None if options.data_file is None else _data_path(path, options.data_file)
    file = None
    if data_path is not None:
        location = os.path.relpath(data_path, os.path.dirname(path))
        file = DataFile(location, options.min_bytes, external)
    message = serialized(model, file, options.opset, spells_out=options.spells_out)
    _check_size(message, file)
    with _reporting(path), contextlib.ExitStack() as stack:
        model_file = stack.enter_context(writing(path))
        # Contexts exit in reverse: the data file is renamed to its name before the model is, so a
        # model never refers to missing data.
        if file is not None and data_path is not None and not file.is_empty:
            file.write(stack.enter_context(writing(data_path)))
        message.write(model_file)


def serialized(
    model: Model, file: External | None, opset: int = 0, *, spells_out: bool = False
) -> Message:
    """Return the model as a ModelProto; `file` has the bytes of external tensors.

    It imports `opset` of ai.onnx if the model does not need a newer one.
    """
    versions = Versions(model.opsets, opset)
    graph = GraphWriter(versions, file, spells_out).main(model)
    return model_message(model, graph, versions.ir, versions.opsets)


def ort_bytes(model: Model, opset: int = 0) -> bytearray:
    """Return the model in the .ort format."""
    from sardonyx.save.ort_format import Weights, ort_file  # few models are saved in it

    versions, weights = Versions(model.opsets, opset), Weights()
    writer = GraphWriter(versions, weights)
    message = model_message(model, writer.main(model), versions.ir, versions.opsets)
    _check_ort_size(message.size + weights.size)  # before weights are read
    data = ort_file(native.decode(message.joined()), weights, writer.facts())
    _check_ort_size(len(data))
    return data


def _check_ort_size(size: int) -> None:
    if size > MAX_BYTES:
        raise InvalidArgument(
            f"the saved model would have {size} bytes, and a file in the .ort format holds at "
            f"most {MAX_BYTES}",
            hint="save it as an .onnx file, with external data",
        )


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
    """Return the path of the data file, which must be in or below the model's folder."""
    folder = os.path.dirname(path)
    data_path = os.path.normpath(os.path.join(folder, name))
    is_relative = bool(name) and "\0" not in name and not os.path.isabs(name)
    # Symbolic links may lead out of the folder.
    if not is_relative or not is_below(os.path.realpath(data_path), os.path.realpath(folder)):
        raise InvalidArgument(
            f"{_DATA_FILE} is {name!r}, which is not a path in or below {folder}",
            hint="give a plain file name",
        )
    if data_path == path or os.path.isdir(data_path):
        conflict = "the model itself" if data_path == path else "a folder"
        raise InvalidArgument(
            f"{_DATA_FILE} is {name!r}, which is {conflict}", hint="give another name"
        )
    return data_path


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
