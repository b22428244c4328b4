"""Opens the bytes of a model (file, buffer, file object, ModelProto) and its external data."""

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

_CHUNK: Final = 64 << 20  # bytes per read call
_ORT_IDENTIFIER: Final = b"ORTM"  # after the first four bytes of a model in the .ort format


@mutable
class Files:
    """Opens external data files: the user's buffers by name, else files in the model's folder."""

    folder: str | None  # None for a model in memory
    model_path: str | None = None
    in_memory: Mapping[str, memoryview] = field(default_factory=dict)
    copies: bool = False  # read files into memory instead of mapping them
    _open: dict[str, Source] = field(default_factory=dict)
    _states: dict[str, Hashable | None] = field(default_factory=dict)  # identities by path
    # Byte ranges of tensors: file, offset and length.
    _ranges: dict[tuple[str, int, int], None] = field(default_factory=dict)

    def open(self, location: str) -> Source:
        """Return the file at a location, which is mapped once."""
        key = location.removeprefix("./")
        if key not in self._open:
            if key in self.in_memory:
                source = buffers.source(self.in_memory[key], key)
                self._open[key] = _copied_buffer(source) if self.copies else source
            else:
                self._open[key] = self._map(location)
                # By the unresolved path: symbolic links in it may change their targets.
                assert self.folder is not None
                self._states[os.path.join(self.folder, location)] = self._open[key].identity
        return self._open[key]

    def add(self, location: str, source: Source) -> None:
        """Open a location as a source that is open already."""
        self._open[location] = source

    def part(self, location: str, offset: int, length: int) -> Source:
        """Return the file at a location, and record the byte range of a tensor in it."""
        source = self.open(location)
        self._ranges[location.removeprefix("./"), offset, length] = None
        return source

    def parts(self) -> list[tuple[Source, int, int]]:
        """Return the byte ranges of tensors: file, offset and length."""
        return [(self._open[key], offset, length) for key, offset, length in self._ranges]

    def sources(self) -> list[Source]:
        """Return the opened files, in memory or on disk."""
        return list(self._open.values())

    def location(self, source: Source) -> str:
        """Return the location of an open file."""
        for name, other in self._open.items():
            if other is source:
                return name
        raise InternalError(f"{source.name} is not a file of the model")

    def states(self) -> dict[str, Hashable | None]:
        """Return the identity of each opened path; None where a change could go unnoticed."""
        return dict(self._states)

    def buffers(self) -> tuple[tuple[str, Hashable, int], ...] | None:
        """Return name, address and size of the files in memory; None if one is writable."""
        sources = {name: buffers.source(data, name) for name, data in self.in_memory.items()}
        if not all(source.is_fixed for source in sources.values()):
            return None
        return tuple((name, s.at(0), s.data.nbytes) for name, s in sorted(sources.items()))

    def _map(self, location: str) -> Source:
        try:
            return map_file(self._resolve(location), location, self.copies)
        except (InvalidGraph, NoSuchFile) as error:
            if self.in_memory:  # one of the names may be misspelt
                names = ", ".join(map(repr, self.in_memory))
                hints = [f"the model names {location!r}; in memory are {names}"]
                hints += [text for key, text in error.where.items() if key == "hint"]
                error.where["hint"] = "; ".join(hints)
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
        if any(is_below(real, root) for root in self._roots()):
            return real
        raise InvalidGraph(
            f"External data path validation failed: the data file {location!r} leads out of the "
            f"model's folder, to {real}",
            hint="external data must be in or below the model's folder",
        )

    def _roots(self) -> list[str]:
        assert self.folder is not None
        roots = [os.path.realpath(self.folder)]
        # Caches such as Hugging Face's keep model and data as links into one folder: the folder of
        # the link's target is allowed, too.
        if self.model_path is not None and os.path.islink(self.model_path):
            roots.append(os.path.dirname(os.path.realpath(self.model_path)))
        return roots


def is_below(path: str, root: str) -> bool:
    """Return whether a path is below a folder; both are resolved."""
    return path.startswith(root.rstrip(os.sep) + os.sep)


def map_file(path: str, name: str, copies: bool = False) -> Source:
    """Return a regular file, mapped or read into memory."""
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
_copying: Final = Lock()  # guards `_copies`: a file is copied by one thread, others wait for it
_SETTLED_NS: Final = 20_000_000  # longer than a tick of the kernel clock for file times
_SECOND_NS: Final = 1_000_000_000
_COARSE_NS: Final = 2 * _SECOND_NS + _SETTLED_NS  # longer than the coarsest resolution (FAT: 2 s)


def stamp_of(status: os.stat_result) -> Stamp | None:
    """Return the stamp of a file; None if the file may still change without changing the stamp.

    File times have a coarse resolution: a file may be written twice within one tick.
    """
    return None if _unsettled_ns(status) > 0 else stamp_now(status)


def _unsettled_ns(status: os.stat_result) -> int:
    """Return the longest time for which a write could still leave the file's times unchanged."""
    # A time of whole seconds suggests a file system without finer ones; the clock of a remote
    # machine may be slow.
    is_coarse = not status.st_ctime_ns % _SECOND_NS or mounts.is_network(status.st_dev)
    changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
    return changed_ns + (_COARSE_NS if is_coarse else _SETTLED_NS) - time.time_ns()


def settled(path: str) -> Stamp | None:
    """Return the stamp of a file just written, after a short wait until it is reliable."""
    try:
        wait = _unsettled_ns(os.stat(path))
        if 0 < wait <= _SETTLED_NS:
            time.sleep((wait + 1000) / _SECOND_NS)
        return stamp_of(os.stat(path))
    except OSError:
        return None


def identity_of(status: os.stat_result) -> Hashable | None:
    """Return a key of a file's version; None if a change could go unnoticed."""
    stamp = stamp_of(status)
    return None if stamp is None else ("file", *stamp)


def _mapped(descriptor: int, status: os.stat_result, path: str, name: str) -> Source:
    """Map a file, or return the mapping of the same version of the file that is in use."""
    stamp = stamp_of(status)
    identity = None if stamp is None else ("file", *stamp)
    source = None if identity is None else _mappings.get(identity)
    if source is None:
        data = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        file = File.of(path, status)
        source = Source(data, name, identity, is_fixed=True, file=file, stamp=stamp)
        # Loading reads a few bytes here and there: readahead would fetch megabytes for each.
        source.advise(mmap.MADV_RANDOM)
        if identity is not None:
            _mappings[identity] = source
    return source


def _copied(descriptor: int, status: os.stat_result, path: str, name: str) -> Source:
    """Read a file into memory, or return the copy of the same version that is in use."""
    with _copying:
        stamp = stamp_of(status)
        source = None if stamp is None else _copies.get(stamp)
        if source is None:
            memory = pages(status.st_size)
            _read_all(descriptor, memory.data, path)
            if stamp_now(os.fstat(descriptor)) != stamp_now(status):
                raise Fail(f"{path} changed while it was read", hint="load the model again")
            memory.flags.writeable = False
            source = Source(memory.data, name, is_fixed=True, stamp=stamp)
            if stamp is not None:
                _copies[stamp] = source
        return source


def is_as_opened(source: Source) -> bool | None:
    """Return whether a mapped file is unchanged; None if its path now names another file.

    Sources that are not mapped files do not change.
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
        n = os.preadv(descriptor, [into[done : done + _CHUNK]], done)
        if not n:
            raise Fail(
                f"{path} became shorter while it was read: {done} of {into.nbytes} bytes are left",
                hint="load the model again",
            )
        done += n


def _copied_buffer(buffer: Source) -> Source:
    memory = on_pages(np.frombuffer(buffer.data, np.uint8))
    memory.flags.writeable = False
    return Source(memory.data, buffer.name, is_fixed=True)


def read_ahead(source: Source) -> None:
    """Allow readahead in a mapped file, which is now read sequentially for the most part."""
    source.advise(mmap.MADV_NORMAL)


@mutable
class ModelBytes:
    """The bytes of a model and access to its external data."""

    source: Source
    files: Files
    origin: str  # uri, array, proto or istream: the name of the load in profiles
    fingerprint: str | None = None  # as pack.identity.fingerprint computes it on demand
    model: Model | None = None  # a model in memory, instead of bytes
    original: Source | None = None  # in another format; `source` is its translation to ONNX

    @property
    def given(self) -> Source:
        """The bytes that the user gave."""
        return self.source if self.original is None else self.original

    def read_ahead(self) -> None:
        """Advise the kernel that runs now read the mapped weights sequentially."""
        for source in (self.source, *self.files.sources()):
            read_ahead(source)

    def release_pages(self) -> None:
        """Let the kernel take the pages of mapped files, which are read again when needed."""
        for source in (self.source, *self.files.sources()):
            source.advise(mmap.MADV_DONTNEED)


def read_model(
    model: Any,
    folder: str | None = None,
    in_memory: Mapping[str, memoryview] | None = None,
    copies: bool = False,
) -> ModelBytes:
    """Open a model: a path, bytes, any buffer, a binary file, an onnx.ModelProto, or a Model.

    Files and bytes are ONNX or in the .ort format.
    """
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
    if copies and origin == "array":  # the others are copies already
        source = _copied_buffer(source)
    return _checked(source, Files(folder, None, in_memory, copies), origin)


def _in_memory(model: Any) -> tuple[memoryview, str, str]:
    """Return the bytes of a model that is not a file, its kind, and its name in profiles."""
    if hasattr(model, "SerializeToString"):
        return memoryview(model.SerializeToString()), "ModelProto", "proto"
    is_buffer = isinstance(model, mmap.mmap)  # it has `read` too, which would copy
    if hasattr(model, "read") and not is_buffer:
        return _buffer(model.read()), "file object", "istream"
    return _buffer(model), "bytes", "array"


def _checked(source: Source, files: Files, origin: str) -> ModelBytes:
    if not source.data.nbytes:
        raise InvalidProtobuf(f"the model is empty: {source.name} has no bytes")
    if bytes(source.data[4:8]) == _ORT_IDENTIFIER:
        return _translated(source, files, origin)
    return ModelBytes(source, files, origin)


def _translated(original: Source, files: Files, origin: str) -> ModelBytes:
    """Return a model in the .ort format as an ONNX model whose weights are in that file."""
    from sardonyx.load.ort_format import onnx_bytes  # few models are in it

    location = original.name.encode("utf-8", "replace").decode()  # paths may be other bytes
    files.add(location, original)
    data = onnx_bytes(original.data, original.name, location)
    # Not fixed: the translation is memory of one session, which programs and packs cannot share.
    source = Source(memoryview(data), original.name, is_fixed=False)
    return ModelBytes(source, files, origin, original=original)


def _buffer(model: Any) -> memoryview:
    try:
        memoryview(model)
    except TypeError:
        raise InvalidArgument(
            "a model must be a path, bytes, a buffer, a binary file or a ModelProto, "
            f"got {type(model).__name__}"
        ) from None
    return buffers.as_bytes(model, "the model's buffer")
