"""Checkpoints: named tensors and JSON metadata in safetensors files, written atomically.

A file appears under its name complete and synced, or not at all, so the newest file of a folder is
valid even if a process was killed or a disk was full. Nothing that is read is executed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.base.log import logger
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import Fail, InvalidArgument, SardonyxError
from sardonyx.graph.dtype import DType, by_name, by_numpy
from sardonyx.load.source import map_file

SUFFIX: Final = ".safetensors"
MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the safetensors library
_METADATA: Final = "__metadata__"  # of the format: strings by name
_OWN: Final = "sardonyx"  # the entry with Sardonyx's metadata as JSON
_ALIGN: Final = 8  # bytes, of the tensors' data in a file
_FILE_NAME: Final = re.compile(r"step-(\d{8,})\.safetensors")

# Types of the format by the short names of `DType`.
_TYPES: Final = {
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "bool": "BOOL", "c64": "C64",
    "i64": "I64", "i32": "I32", "i16": "I16", "i8": "I8",
    "u64": "U64", "u32": "U32", "u16": "U16", "u8": "U8",
    "f8e4m3fn": "F8_E4M3", "f8e5m2": "F8_E5M2", "f8e8m0": "F8_E8M0",
}  # fmt: skip
_NAMES: Final = {label: name for name, label in _TYPES.items()}


@frozen
class Checkpoint:
    """The contents of a checkpoint file; tensors are read-only."""

    path: str
    tensors: dict[str, Array]
    metadata: dict[str, Any]


def save_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write tensors, and metadata that JSON can express, to a safetensors file, atomically.

    If writing fails, as on a full disk, a file that was there before is unchanged.
    """
    target = os.path.abspath(os.fspath(path))
    arrays = {name: _to_write(name, tensor) for name, tensor in tensors.items()}
    # Descending element sizes keep every tensor aligned to its type.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header = _header(names, arrays, metadata or {})
    try:
        with writing(target) as file:
            file.write(struct.pack("<Q", len(header)))
            file.write(header)
            for name in names:
                if arrays[name].size:
                    file.write(arrays[name].reshape(-1).view(np.uint8).data)
        _sync_folder(os.path.dirname(target))
    except OSError as error:
        raise Fail(
            f"the checkpoint {target} cannot be written: {error.strerror or error}",
            hint="free space, or choose another folder; earlier checkpoints are unchanged",
        ) from error


def _to_write(name: str, tensor: Any) -> Array:
    """Return the tensor as a contiguous little-endian array of a type that the format has."""
    array = np.asarray(tensor)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    dtype = by_numpy(array.dtype)
    if dtype is None or dtype.name not in _TYPES:
        raise InvalidArgument(
            f"the tensor {name} has the type {array.dtype}, which safetensors files cannot hold",
            hint="store integers of at least 8 bits, bool or floats",
        )
    return np.asarray(array, order="C")


def _header(names: list[str], arrays: Mapping[str, Array], metadata: Mapping[str, Any]) -> bytes:
    """Return the header as JSON, padded so that the data after it is aligned."""
    try:
        own = json.dumps(dict(metadata), allow_nan=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the metadata cannot be written as JSON: {error}") from None
    entries: dict[str, Any] = {_METADATA: {_OWN: own}}
    begin = 0
    for name in names:
        if name == _METADATA:
            raise InvalidArgument(f"{_METADATA} is a reserved name, not one of a tensor")
        array = arrays[name]
        dtype = by_numpy(array.dtype)
        assert dtype is not None
        end = begin + array.nbytes
        entries[name] = {
            "dtype": _TYPES[dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER_BYTES - _ALIGN:
        raise InvalidArgument(
            f"the header would take {len(text)} bytes, more than the {MAX_HEADER_BYTES} that "
            "readers accept",
            hint="store large metadata as a tensor",
        )
    return text + b" " * (-len(text) % _ALIGN)


def _sync_folder(folder: str) -> None:
    """Make a rename durable; file systems without fsync for folders are left as they are."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_tensors(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a safetensors file; tensors are views of the mapped file, copied if misaligned.

    `metadata` is what `save_tensors` was given; in files of other programs, their strings by name.
    """
    target = os.path.abspath(os.fspath(path))
    source = map_file(target, os.path.basename(target))
    data = np.frombuffer(source.data, np.uint8) if source.data.nbytes else np.empty(0, np.uint8)
    try:
        return _read(target, data)
    except _InvalidFile as error:
        raise InvalidArgument(
            f"{target} is truncated or not a safetensors file: {error}",
            hint="use an earlier checkpoint",
        ) from None


class _InvalidFile(Exception):
    """Why a file is not valid."""


def _read(path: str, data: Array) -> Checkpoint:
    if data.nbytes < 8:
        raise _InvalidFile(f"it has {data.nbytes} bytes, less than a header")
    length = int.from_bytes(bytes(data[:8]), "little")
    if length > min(MAX_HEADER_BYTES, data.nbytes - 8):
        raise _InvalidFile(f"its header should have {length} bytes, the file has {data.nbytes}")
    entries = _entries(bytes(data[8 : 8 + length]))
    metadata = _metadata(entries.pop(_METADATA, {}))
    body = data[8 + length :]
    tensors: dict[str, Array] = {}
    spans = []
    for name, entry in entries.items():
        tensors[name], span = _tensor(name, entry, body)
        spans.append((*span, name))
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            raise _InvalidFile(f"the data of {name} begins at byte {begin}, not {at}")
        at = end
    if at != body.nbytes:
        raise _InvalidFile(f"its tensors have {at} bytes, but {body.nbytes} follow the header")
    return Checkpoint(path, tensors, metadata)


def _entries(text: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _InvalidFile(f"its header is not JSON ({error})") from None
    if not isinstance(entries, dict):
        raise _InvalidFile("its header is not a JSON object")
    return entries


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _InvalidFile("a name in its header occurs twice")
    return found


def _metadata(strings: Any) -> dict[str, Any]:
    if not isinstance(strings, dict) or not all(isinstance(s, str) for s in strings.values()):
        raise _InvalidFile(f"{_METADATA} does not consist of strings")
    if _OWN not in strings:
        return strings
    return _entries(strings[_OWN].encode("utf-8", "surrogatepass"))


def _tensor(name: str, entry: Any, body: Array) -> tuple[Array, tuple[int, int]]:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _InvalidFile(f"the entry of {name} has no dtype, shape or data_offsets")
    label, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(label, str) or label not in _NAMES:
        raise _InvalidFile(f"{name} has the unknown type {label!r}")
    dtype = by_name(_NAMES[label])
    if not _are_sizes(shape) or len(shape) > 32:
        raise _InvalidFile(f"{name} has the shape {shape!r:.80}")
    if not _are_sizes(span) or len(span) != 2 or not span[0] <= span[1] <= body.nbytes:
        raise _InvalidFile(f"the data of {name} at {span!r:.80} is outside the file")
    if span[1] - span[0] != math.prod(shape) * dtype.itemsize:
        raise _InvalidFile(f"{name} is {label}{shape} in {span[1] - span[0]} bytes")
    return _array(body[span[0] : span[1]], dtype, shape), (span[0], span[1])


def _are_sizes(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and 0 <= n < 2**63 for n in numbers)


def _array(raw: Array, dtype: DType, shape: list[int]) -> Array:
    if raw.size and raw.__array_interface__["data"][0] % dtype.np.alignment:
        raw = raw.copy()
        raw.setflags(write=False)
    return raw.view(dtype.np).reshape(shape)


class CheckpointFolder:
    """A folder of checkpoints by step, of which the newest `keep` stay."""

    def __init__(self, path: str | os.PathLike[str], keep: int | None = 2) -> None:
        """Use a folder, which `create` or the first `save` makes; `keep=None` keeps all."""
        if keep is not None and keep < 1:
            raise InvalidArgument(f"keep must be at least 1, got {keep}")
        self.path = os.path.abspath(os.fspath(path))
        self.keep = keep

    def save(
        self, step: int, tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> str:
        """Write the checkpoint of a step, then remove the oldest; return its path."""
        self._make()
        path = os.path.join(self.path, f"step-{step:08d}{SUFFIX}")
        save_tensors(path, tensors, {**(metadata or {}), "step": step})
        self._prune(step)
        return path

    def create(self) -> None:
        """Make the folder; raise if files cannot be written to it."""
        self._make()
        try:
            with tempfile.TemporaryFile(dir=self.path) as file:
                file.write(b"0")
        except OSError as error:
            raise Fail(
                f"the folder {self.path} cannot be written to: {error.strerror}",
                hint="choose another folder of checkpoints, or free space",
            ) from error

    def _make(self) -> None:
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            is_file = isinstance(error, (FileExistsError, NotADirectoryError))
            why = "a file is in its place" if is_file else error.strerror
            raise Fail(f"the folder {self.path} cannot be created: {why}") from error

    def steps(self) -> dict[int, str]:
        """Return the paths of all checkpoints by step, oldest first."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return {}
        matches = ((_FILE_NAME.fullmatch(name), name) for name in names)
        found = {int(m.group(1)): os.path.join(self.path, name) for m, name in matches if m}
        return dict(sorted(found.items()))

    def latest(self) -> str | None:
        """Return the path of the newest checkpoint; None if there is none."""
        return next(reversed(self.steps().values()), None)

    def load_latest(self) -> Checkpoint | None:
        """Read the newest valid checkpoint; None if the folder has none at all.

        Damaged files are skipped with a warning; if all are damaged, that is an error.
        """
        failure: SardonyxError | None = None
        for checkpoint in self._newest_first():
            if not isinstance(checkpoint, SardonyxError):
                return checkpoint
            logger.warning("a damaged checkpoint is skipped: %s", checkpoint.what)
            failure = failure or checkpoint
        if failure is not None:
            raise failure
        return None

    def _newest_first(self) -> Iterator[Checkpoint | SardonyxError]:
        for path in reversed(self.steps().values()):
            try:
                yield load_tensors(path)
            except SardonyxError as error:
                yield error

    def _prune(self, newest: int) -> None:
        """Remove all but the newest checkpoints; ones after `newest` are of an abandoned run."""
        paths = self.steps()
        kept = [step for step in paths if step <= newest]
        stay = set(kept if self.keep is None else kept[-self.keep :])
        for step, path in paths.items():
            if step not in stay:
                with contextlib.suppress(OSError):  # already removed, or not permitted
                    os.unlink(path)
