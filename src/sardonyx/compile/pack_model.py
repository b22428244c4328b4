"""Writes packs: compiles up to the program, which says in what forms kernels want weights."""

from __future__ import annotations

import io
import os
from typing import Any

from sardonyx.base.collector import Paused
from sardonyx.base.records import frozen
from sardonyx.base.stages import Stages
from sardonyx.compile import Options, given_bytes, lowered, program_of, settings_of
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import Const, Source
from sardonyx.load.model import Model
from sardonyx.load.source import Files, ModelBytes, settled
from sardonyx.pack.lookup import SUFFIX, serves
from sardonyx.pack.write import Label, Load, Parcel, Report, parcel, sort
from sardonyx.pack.write import write as write_file
from sardonyx.weights.layouts import Wanted


def _silent(done: int, total: int) -> None:
    """Says nothing of how far it is."""


@frozen
class Request:
    """A pack to write: where, and for whom."""

    path: str
    any_level: bool = False  # serves every level of optimization
    report: Report = _silent


@frozen
class Written:
    """A pack that was written."""

    path: str
    size_bytes: int
    doubled: list[tuple[Const, int]]  # weights in more than one form, and their extra bytes


def pack(source: Any, options: Options, request: Request) -> Written:
    """Writes the pack of a model, beside which it stays."""
    from sardonyx.pack.target import check_pack

    given = _given(source, options)
    with Paused():
        model = lowered(given, options, Stages(options.check))
        _check_target(request.path, given)
        check_pack(request.path)
        return write(request, given, model, options)


def write(request: Request, given: ModelBytes, model: Model, options: Options) -> Written:
    """Writes the pack of a model that is lowered already."""
    goods, load = _sorted(model, options, standalone=False)
    cache = None if options.pack is None else options.pack.cache
    label = Label(given, settings_of(options), request.any_level, cache=cache)
    return _written(request, goods, load, label)


def standalone(source: Any, options: Options, request: Request) -> Written:
    """Writes a model that needs no other file than its pack: `path` and `path.pack`."""
    from sardonyx.base.atomic_file import writing
    from sardonyx.pack.target import check_model, check_pack
    from sardonyx.save.stub import stub

    given = _given(source, options)
    with Paused():
        model = lowered(given, options, Stages(options.check))
        for path, check in ((request.path, check_model), (request.path + SUFFIX, check_pack)):
            _check_target(path, given)  # first: what belongs to the model is not to be removed
            check(path)
        goods, load = _sorted(model, options, standalone=True)
        memory = io.BytesIO()
        stub(model).write(memory)
        source_ = Source(memoryview(memory.getvalue()), request.path)
        label = Label(
            ModelBytes(source_, Files(None), "uri"), settings_of(options), standalone=True
        )
        beside = Request(request.path + SUFFIX, report=request.report)
        written = _written(beside, goods, load, label)
    with writing(request.path) as file:  # after the pack: a model is never without its weights
        file.write(memory.getvalue())
    return written


def _given(source: Any, options: Options) -> ModelBytes:
    """A model that can be packed; one that was just written, when its times tell it from others."""
    if isinstance(source, (str, os.PathLike)):
        settled(os.fspath(source))
    given = given_bytes(source, options)
    _check(given)
    return given


def _check(given: ModelBytes) -> None:
    if not serves(given):
        raise InvalidArgument(
            "a model whose bytes may change has no pack", hint="give the path of a file"
        )
    from sardonyx.save.stub import is_stub  # a session that writes its own pack needs none of it

    if is_stub(given.source.data):
        raise InvalidArgument(
            f"{given.source.name} is a standalone model, its own pack: there is nothing to pack",
            hint="pack the model that it was made of; --verify reads the pack that it has",
        )


def _check_target(path: str, given: ModelBytes) -> None:
    """Refuses to write over what is packed."""
    for name in (given.files.model_path, *given.files.states()):
        if name is not None and os.path.exists(path) and os.path.samefile(path, name):
            raise InvalidArgument(
                f"{path} is a file of the model itself", hint="choose another name for the pack"
            )


def _sorted(model: Model, options: Options, standalone: bool) -> tuple[Parcel, Load]:
    """What a pack will hold: asked of the program that a load from it will make."""
    goods = parcel(model)
    wanted = Wanted()
    program_of(goods.model, options, Stages())[1].wants(wanted)
    return goods, sort(goods, wanted.wants, standalone)


def _written(request: Request, goods: Parcel, load: Load, label: Label) -> Written:
    size = write_file(request.path, goods, load, label, request.report)
    return Written(request.path, size, load.doubled())
