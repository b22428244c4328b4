"""Writes packs: compiles up to the program, which determines the weight layouts of kernels."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from sardonyx.base.gc_pause import GcPause
from sardonyx.base.records import frozen
from sardonyx.base.stages import Stages
from sardonyx.compile import Options, emit_program, load_and_lower, pack_settings, read_source
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import Const, Source
from sardonyx.load import LoadOptions
from sardonyx.load.model import Model
from sardonyx.load.source import Files, ModelBytes, settled
from sardonyx.pack.lookup import SUFFIX, can_have_pack
from sardonyx.pack.write import (
    PackContents,
    PackMetadata,
    Report,
    SerializedModel,
    select_contents,
    serialize,
)
from sardonyx.pack.write import write as write_file
from sardonyx.place import Provider
from sardonyx.weights.layouts import LayoutRecorder


@frozen
class Request:
    """A pack to write."""

    path: str
    any_level: bool = False  # valid for every optimization level
    report: Report = lambda done, total: None  # called with bytes


@frozen
class Written:
    """A written pack."""

    path: str
    size_bytes: int
    doubled: list[tuple[Const, int]]  # weights in more than one layout, and their extra bytes


def pack(source: Any, options: Options, request: Request) -> Written:
    """Write the pack of a model, which is still needed to load it."""
    from sardonyx.pack.target import check_pack

    source = _read_packable(source, options)
    with GcPause():
        model = load_and_lower(source, options, Stages(options.check))
        _check_target(request.path, source)
        check_pack(request.path)
        return write(request, source, model, options)


def write(request: Request, source: ModelBytes, model: Model, options: Options) -> Written:
    """Write the pack of a lowered model."""
    serialized, contents = _contents(model, options, standalone=False)
    cache = None if options.pack is None else options.pack.cache
    label = PackMetadata(source, pack_settings(options), request.any_level, cache=cache)
    return _write_file(request, serialized, contents, label)


def pack_saved(options: Options, providers: Sequence[Provider]) -> Written:
    """Write the pack of the optimized model that `compile` has just saved, beside it."""
    assert options.save is not None
    path = options.save.path
    load = LoadOptions(
        dims_by_name=options.load.dims_by_name, dims_by_denotation=options.load.dims_by_denotation
    )
    request = Request(f"{path}{SUFFIX}", any_level=True)
    return pack(path, Options(providers, load, options.passes), request)


def standalone(source: Any, options: Options, request: Request) -> Written:
    """Write a standalone model, `path` and `path.pack`, which needs no other file."""
    from sardonyx.base.atomic_file import writing
    from sardonyx.pack.target import check_model, check_pack
    from sardonyx.save.model import stub

    source = _read_packable(source, options)
    with GcPause():
        model = load_and_lower(source, options, Stages(options.check))
        for path, check in ((request.path, check_model), (request.path + SUFFIX, check_pack)):
            _check_target(path, source)  # first: the error of `check` suggests to remove the file
            check(path)
        serialized, contents = _contents(model, options, standalone=True)
        memory = io.BytesIO()
        stub(model).write(memory)
        stub_bytes = ModelBytes(
            Source(memoryview(memory.getvalue()), request.path), Files(None), "uri"
        )
        label = PackMetadata(stub_bytes, pack_settings(options), standalone=True)
        pack_request = Request(request.path + SUFFIX, report=request.report)
        written = _write_file(pack_request, serialized, contents, label)
    with writing(request.path) as file:  # after the pack: the model never exists without weights
        file.write(memory.getvalue())
    return written


def _read_packable(source: Any, options: Options) -> ModelBytes:
    """Read a model that can be packed.

    Waits until the times of a file that was just written identify its contents.
    """
    if isinstance(source, (str, os.PathLike)):
        settled(os.fspath(source))
    model = read_source(source, options)
    if model.original is not None:
        raise InvalidArgument(
            "models in the .ort format have no packs",
            hint="pack the .onnx model",
        )
    if not can_have_pack(model):
        raise InvalidArgument(
            "a model whose bytes may change has no pack", hint="pass the path of a file"
        )
    from sardonyx.save.model import is_stub  # not needed by sessions that write a pack cache

    if is_stub(model.source.data):
        raise InvalidArgument(
            f"{model.source.name} is a standalone model, its own pack: there is nothing to pack",
            hint="pack the original model; --verify checks the pack that this one has",
        )
    return model


def _check_target(path: str, source: ModelBytes) -> None:
    """Raise an error if the target is a file of the model."""
    for name in (source.files.model_path, *source.files.states()):
        if name is not None and os.path.exists(path) and os.path.samefile(path, name):
            raise InvalidArgument(
                f"{path} is a file of the model itself", hint="choose another name for the pack"
            )


def _contents(
    model: Model, options: Options, standalone: bool
) -> tuple[SerializedModel, PackContents]:
    """Return the contents of a pack: the layouts read by the program that a load will emit."""
    serialized = serialize(model)
    recorder = LayoutRecorder()
    emit_program(serialized.model, options, Stages())[1].record_layouts(recorder)
    return serialized, select_contents(serialized, recorder.layouts, standalone)


def _write_file(
    request: Request, serialized: SerializedModel, contents: PackContents, label: PackMetadata
) -> Written:
    size = write_file(request.path, serialized, contents, label, request.report)
    return Written(request.path, size, contents.duplicates())
