"""Where a model's bytes lie: a mapped file, a buffer, a file object, a ModelProto, other files."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from sardonyx.errors import InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile
from sardonyx.weights.const import Source


@dataclass(slots=True)
class Files:
    """Finds the files that tensors name: in the user's buffers, else under the model's folder."""

    folder: str | None  # None for a model in memory
    model_path: str | None = None
    in_memory: Mapping[str, memoryview] = field(default_factory=dict)
    _open: dict[str, Source] = field(default_factory=dict)

    def open(self, location: str) -> Source:
        """The file at a location, mapped once."""
        key = location.removeprefix("./")
        if key not in self._open:
            if key in self.in_memory:
                self._open[key] = Source(self.in_memory[key], key)
            else:
                self._open[key] = map_file(self._resolve(location), location)
        return self._open[key]

    def _resolve(self, location: str) -> str:
        if self.folder is None:
            raise InvalidGraph(
                f"the data file {location!r} cannot be found: the model was given in memory",
                hint="set session.model_external_initializers_file_folder_path to its folder",
            )
        if not location or "\0" in location or os.path.isabs(location):
            raise InvalidGraph(
                f"the data file {location!r} is not a relative path",
                hint="external data must lie in or below the model's folder",
            )
        real = os.path.realpath(os.path.join(self.folder, location))
        if any(_is_below(real, root) for root in self._roots()):
            return real
        raise InvalidGraph(
            f"the data file {location!r} leads out of the model's folder, to {real}",
            hint="external data must lie in or below the model's folder",
        )

    def _roots(self) -> list[str]:
        assert self.folder is not None
        roots = [os.path.realpath(self.folder)]
        # A cache keeps model and data as links into one folder: there the link's target counts.
        if self.model_path is not None and os.path.islink(self.model_path):
            roots.append(os.path.dirname(os.path.realpath(self.model_path)))
        return roots


def _is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)


def map_file(path: str, name: str) -> Source:
    """The whole of a regular file, mapped for reading."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer that may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NoSuchFile(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise NoSuchFile(f"{path} cannot be opened: {error}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{path} is not a regular file")
        if status.st_size == 0:
            return Source(memoryview(b""), name)
        return _mapped(descriptor, status, name)
    except OSError as error:
        raise NoSuchFile(f"{path} cannot be mapped: {error}") from None
    finally:
        os.close(descriptor)


_mappings: Final[WeakValueDictionary[Hashable, Source]] = WeakValueDictionary()


def _mapped(descriptor: int, status: os.stat_result, name: str) -> Source:
    """One mapping of a file serves all who have it open, as long as the file stays what it was."""
    times = status.st_mtime_ns, status.st_ctime_ns
    identity = ("file", status.st_dev, status.st_ino, status.st_size, *times)
    found = _mappings.get(identity)
    if found is None:
        data = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        found = Source(data, name, identity)
        _mappings[identity] = found
    return found


@dataclass(slots=True)
class ModelBytes:
    """A model as it was given."""

    source: Source
    files: Files
    origin: str  # uri, array, proto or istream: how the load is called in profiles


def read_model(
    model: Any, folder: str | None = None, in_memory: Mapping[str, memoryview] | None = None
) -> ModelBytes:
    """The bytes of a model from a path, bytes, any buffer, a binary file or an onnx.ModelProto."""
    in_memory = in_memory or {}
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if os.path.isdir(path):
            raise InvalidArgument(f"{path} is a folder, not a model file")
        source = map_file(path, os.path.basename(path))
        files = Files(folder or os.path.dirname(os.path.abspath(path)), path, in_memory)
        return _checked(source, files, "uri")
    if hasattr(model, "SerializeToString"):
        data, name, origin = memoryview(model.SerializeToString()), "ModelProto", "proto"
        files = Files(folder, None, in_memory)
    elif hasattr(model, "read"):
        data, name, origin = _buffer(model.read()), "file object", "istream"
        files = Files(folder, None, in_memory)
    else:
        data, name, origin = _buffer(model), "bytes", "array"
        files = Files(folder, None, in_memory)
    return _checked(Source(data, name), files, origin)


def _checked(source: Source, files: Files, origin: str) -> ModelBytes:
    if not source.data.nbytes:
        raise InvalidProtobuf(f"the model is empty: {source.name} has no bytes")
    return ModelBytes(source, files, origin)


def _buffer(given: Any) -> memoryview:
    try:
        view = memoryview(given)
    except TypeError:
        raise InvalidArgument(
            "a model is a path, bytes, a buffer, a binary file or a ModelProto, "
            f"not {type(given).__name__}"
        ) from None
    if not view.c_contiguous:
        raise InvalidArgument("the model's buffer is not contiguous", hint="pass bytes(buffer)")
    return view.cast("B") if view.nbytes else memoryview(b"")
