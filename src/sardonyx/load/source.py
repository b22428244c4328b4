"""The bytes of a model: a mapped file, a buffer, a file object, a ModelProto, external files."""

from __future__ import annotations

import mmap
import os
import stat
import time
from collections.abc import Hashable, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from sardonyx.base.locks import Lock
from sardonyx.base.records import field, mutable
from sardonyx.base.shared_store import on_pages, pages
from sardonyx.errors import (
    Fail,
    InternalError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    as_sardonyx_error,
    is_out_of_memory,
)
from sardonyx.graph.const import File, Source, Stamp, stamp_now
from sardonyx.load import buffers
from sardonyx.load import mount_points as mounts
from sardonyx.load.model import Model

_PIECE: Final = 64 << 20  # bytes to read in one call


@mutable
class Files:
    """Finds the files that tensors name: in the user's buffers, else under the model's folder."""

    folder: str | None  # None for a model in memory
    model_path: str | None = None
    in_memory: Mapping[str, memoryview] = field(default_factory=dict)
    copies: bool = False  # reads files into memory rather than mapping them
    _open: dict[str, Source] = field(default_factory=dict)
    _states: dict[str, Hashable | None] = field(default_factory=dict)  # of files, as opened
    _parts: dict[tuple[str, int, int], None] = field(default_factory=dict)  # that tensors have

    def open(self, location: str) -> Source:
        """The file at a location, mapped once."""
        key = location.removeprefix("./")
        if key not in self._open:
            if key in self.in_memory:
                found = buffers.source(self.in_memory[key], key)
                self._open[key] = _copied_buffer(found) if self.copies else found
            else:
                found = self._map(location)
                self._open[key] = found
                # By the path as it was given: links in it may come to lead elsewhere.
                assert self.folder is not None
                self._states[os.path.join(self.folder, location)] = found.identity
        return self._open[key]

    def part(self, location: str, offset: int, length: int) -> Source:
        """The file at a location, of which a tensor has some bytes."""
        found = self.open(location)
        self._parts[location.removeprefix("./"), offset, length] = None
        return found

    def parts(self) -> list[tuple[Source, int, int]]:
        """All that tensors have of files: which file, where and how many bytes."""
        return [(self._open[key], offset, length) for key, offset, length in self._parts]

    def sources(self) -> list[Source]:
        """The files that were opened, in memory or on disk."""
        return list(self._open.values())

    def location(self, source: Source) -> str:
        """Where an open file was found."""
        for name, found in self._open.items():
            if found is source:
                return name
        raise InternalError(f"{source.name} is no file of the model")

    def states(self) -> dict[str, Hashable | None]:
        """What was opened at which path; None for what may have changed without a sign."""
        return dict(self._states)

    def buffers(self) -> tuple[tuple[str, Hashable, int], ...] | None:
        """Name, place and size of the files in memory; None if one may change."""
        found = [(name, buffers.source(data, name)) for name, data in self.in_memory.items()]
        if not all(source.is_fixed for _, source in found):
            return None
        return tuple((name, source.at(0), source.data.nbytes) for name, source in sorted(found))

    def _map(self, location: str) -> Source:
        try:
            return map_file(self._resolve(location), location, self.copies)
        except (InvalidGraph, NoSuchFile) as error:
            if self.in_memory:  # a name among those may be misspelt
                names = ", ".join(map(repr, self.in_memory))
                said = [f"the model names {location!r}; in memory are {names}"]
                said += [text for key, text in error.where.items() if key == "hint"]
                error.where["hint"] = "; ".join(said)
            raise

    def _resolve(self, location: str) -> str:
        if self.folder is None:
            raise InvalidGraph(
                f"the data file {location!r} cannot be found: the model was given in memory",
                hint="set session.model_external_initializers_file_folder_path to its folder",
            )
        if not location or "\0" in location or os.path.isabs(location):
            raise InvalidGraph(
                f"the data file {location!r} is not a relative path",
                hint="external data must be in or below the model's folder",
            )
        real = os.path.realpath(os.path.join(self.folder, location))
        if any(_is_below(real, root) for root in self._roots()):
            return real
        raise InvalidGraph(
            f"the data file {location!r} leads out of the model's folder, to {real}",
            hint="external data must be in or below the model's folder",
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


def map_file(path: str, name: str, copies: bool = False) -> Source:
    """The whole of a regular file, mapped for reading or read into memory."""
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
        if copies:
            return _copied(descriptor, status, path, name)
        mounts.warn_of_network(path, status.st_dev)
        return _mapped(descriptor, status, path, name)
    except (OSError, MemoryError) as error:
        if is_out_of_memory(error):
            raise as_sardonyx_error(error, f"mapping {path}") from None
        raise NoSuchFile(f"{path} cannot be mapped: {error}") from None
    finally:
        os.close(descriptor)


_mappings: Final[WeakValueDictionary[Hashable, Source]] = WeakValueDictionary()
_copies: Final[WeakValueDictionary[Hashable, Source]] = WeakValueDictionary()
_copying: Final = Lock()
_SETTLED_NS: Final = 20_000_000  # longer than a tick of the clock that file times are taken from
_SECOND_NS: Final = 1_000_000_000
_COARSE_NS: Final = 2 * _SECOND_NS + _SETTLED_NS  # longer than the coarsest ticks of file systems


def stamp_of(status: os.stat_result) -> Stamp | None:
    """By what a file is known again; None if it may yet change without a sign.

    Times of files have coarse ticks: a file just written may be written again within the same one.
    """
    return None if _unsettled_ns(status) > 0 else stamp_now(status)


def _unsettled_ns(status: os.stat_result) -> int:
    """How long a write will yet leave the times of a file as they are, at most."""
    times = status.st_mtime_ns, status.st_ctime_ns
    # Whole seconds are how a file system looks that has no finer times; another machine's clock
    # may be behind.
    is_coarse = not status.st_ctime_ns % _SECOND_NS or mounts.is_network(status.st_dev)
    return max(times) + (_COARSE_NS if is_coarse else _SETTLED_NS) - time.time_ns()


def settled(path: str) -> Stamp | None:
    """The stamp of a file that was just written, as soon as it tells it from a later one."""
    try:
        wait = _unsettled_ns(os.stat(path))
        if 0 < wait <= _SETTLED_NS:
            time.sleep((wait + 1000) / _SECOND_NS)
        return stamp_of(os.stat(path))
    except OSError:
        return None


def identity_of(status: os.stat_result) -> Hashable | None:
    """What a file keeps as long as its bytes stay; None if that cannot be known."""
    stamp = stamp_of(status)
    return None if stamp is None else ("file", *stamp)


def _mapped(descriptor: int, status: os.stat_result, path: str, name: str) -> Source:
    """One mapping of a file serves all who have it open, as long as the file stays what it was."""
    stamp = stamp_of(status)
    identity = None if stamp is None else ("file", *stamp)
    found = None if identity is None else _mappings.get(identity)
    if found is None:
        data = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        file = File.of(path, status)
        found = Source(data, name, identity, is_fixed=True, file=file, stamp=stamp)
        # Loading looks here and there: in a cold file, every look would read megabytes ahead.
        found.advise(mmap.MADV_RANDOM)
        if identity is not None:
            _mappings[identity] = found
    return found


def _copied(descriptor: int, status: os.stat_result, path: str, name: str) -> Source:
    """The bytes of a file in memory of our own, read once for all who want them so."""
    with _copying:
        stamp = stamp_of(status)
        found = None if stamp is None else _copies.get(stamp)
        if found is None:
            memory = pages(status.st_size)
            _read_all(descriptor, memory.data, path)
            if stamp_now(os.fstat(descriptor)) != stamp_now(status):
                raise Fail(f"{path} changed while it was read", hint="load the model again")
            memory.flags.writeable = False
            found = Source(memory.data, name, is_fixed=True, stamp=stamp)
            if stamp is not None:
                _copies[stamp] = found
        return found


def is_as_opened(source: Source) -> bool | None:
    """Whether a mapped file is what it was when it was opened; None if its path leads elsewhere.

    Bytes that are no mapping of a file do not change.
    """
    if source.file is None:
        return True
    try:
        now = File.of(source.file.path, os.stat(source.file.path))
    except OSError:
        return None
    if (now.device, now.inode) != (source.file.device, source.file.inode):
        return None
    return now == source.file


def _read_all(descriptor: int, into: memoryview, path: str) -> None:
    done = 0
    while done < into.nbytes:
        n = os.preadv(descriptor, [into[done : done + _PIECE]], done)
        if not n:
            raise Fail(
                f"{path} became shorter while it was read: {done} of {into.nbytes} bytes are left",
                hint="load the model again",
            )
        done += n


def _copied_buffer(given: Source) -> Source:
    memory = on_pages(np.frombuffer(given.data, np.uint8))
    memory.flags.writeable = False
    return Source(memory.data, given.name, is_fixed=True)


def read_ahead(source: Source) -> None:
    """Says that the bytes of a mapped file will be read from here on, most of them in order."""
    source.advise(mmap.MADV_NORMAL)


@mutable
class ModelBytes:
    """A model as it was given."""

    source: Source
    files: Files
    origin: str  # uri, array, proto or istream: how the load is called in profiles
    digest: str | None = None  # of all but weights, once asked for
    model: Model | None = None  # that was loaded, or made, before; there are no bytes of it

    def read_ahead(self) -> None:
        """Advise the kernel that runs now read the mapped weights sequentially."""
        for source in (self.source, *self.files.sources()):
            read_ahead(source)


def read_model(
    model: Any,
    folder: str | None = None,
    in_memory: Mapping[str, memoryview] | None = None,
    copies: bool = False,
) -> ModelBytes:
    """A model from a path, bytes, any buffer, a binary file, an onnx.ModelProto, or a Model."""
    in_memory = in_memory or {}
    if isinstance(model, Model):
        return ModelBytes(Source(memoryview(b""), "Model"), Files(None), model.origin, model=model)
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if os.path.isdir(path):
            raise InvalidArgument(f"{path} is a folder, not a model file")
        source = map_file(path, os.path.basename(path), copies)
        folder = folder or os.path.dirname(os.path.abspath(path))
        return _checked(source, Files(folder, path, in_memory, copies), "uri")
    data, name, origin = _in_memory(model)
    source = buffers.source(data, name)
    if copies and origin == "array":  # others are read anew anyway
        source = _copied_buffer(source)
    return _checked(source, Files(folder, None, in_memory, copies), origin)


def _in_memory(model: Any) -> tuple[memoryview, str, str]:
    """The bytes of a model that is no file, what it is, and how profiles call it."""
    if hasattr(model, "SerializeToString"):
        return memoryview(model.SerializeToString()), "ModelProto", "proto"
    is_buffer = isinstance(model, mmap.mmap)  # it can be read like a file, at the price of a copy
    if hasattr(model, "read") and not is_buffer:
        return _buffer(model.read()), "file object", "istream"
    return _buffer(model), "bytes", "array"


def _checked(source: Source, files: Files, origin: str) -> ModelBytes:
    if not source.data.nbytes:
        raise InvalidProtobuf(f"the model is empty: {source.name} has no bytes")
    return ModelBytes(source, files, origin)


def _buffer(given: Any) -> memoryview:
    try:
        memoryview(given)
    except TypeError:
        raise InvalidArgument(
            "a model is a path, bytes, a buffer, a binary file or a ModelProto, "
            f"not {type(given).__name__}"
        ) from None
    return buffers.as_bytes(given, "the model's buffer")
