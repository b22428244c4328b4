"""Sessions of one model with the same options share one program, as long as any of them lives."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Final

from sardonyx._native import BlockPool
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Store
from sardonyx.compile import Compiled, Options
from sardonyx.load.source import ModelBytes, identity_of
from sardonyx.ops import custom_ops
from sardonyx.pack.lookup import SUFFIX
from sardonyx.program.native import RunSettings
from sardonyx.schedule import OrderOptions

State = tuple[str, Hashable | None]  # a path, and what file was there


@frozen(weakref_slot=True)
class Shared:
    """A program, ready to run, and what it was made of: as long as it lives, so do those bytes."""

    compiled: Compiled
    given: ModelBytes
    pool: BlockPool
    files: tuple[State, ...]  # beside the model's own

    @property
    def is_current(self) -> bool:
        """Whether a load would find the same files."""
        return all(was is not None and _state(path) == was for path, was in self.files)


PROGRAMS: Final[Store[Shared]] = Store(lambda shared: shared.is_current)


def _order_key(order: OrderOptions) -> Hashable:
    return order.order, order.effort, order.branches, tuple(sorted(order.hints.items()))


def key_of(
    given: ModelBytes, options: Options, settings: RunSettings, providers: Hashable
) -> Hashable | None:
    """What is equal for sessions that may share a program; None if one may not.

    Places in memory are part of it: a program keeps what it was made of.
    """
    load, files = options.load, given.files
    if options.save is not None or load.initializers or load.copies or not given.source.is_fixed:
        return None
    pack = None if files.model_path is None else files.model_path + SUFFIX
    buffers = files.buffers()
    if buffers is None or (pack is not None and os.path.lexists(pack) and _state(pack) is None):
        return None
    return (
        given.source.at(0),
        given.source.data.nbytes,
        files.folder,
        files.model_path,
        buffers,
        tuple(sorted(load.dims_by_name.items())),
        tuple(sorted(load.dims_by_denotation.items())),
        (load.split_names, load.fixes_defaults, load.is_strict, load.most_nodes, load.most_bytes),
        options.outputs,
        options.passes,
        options.pack,
        None if pack is None else _state(pack),
        options.container,
        options.wishes.key,
        _order_key(options.order),
        None if options.shapes is None else tuple(sorted(options.shapes.items())),
        settings,
        providers,
        custom_ops(),
    )


def shared(compiled: Compiled, given: ModelBytes, pool: BlockPool) -> Shared:
    """A program with its memory and the files that it was made of."""
    return Shared(compiled, given, pool, tuple(given.files.states().items()))


def _state(path: str) -> Hashable | None:
    """What file is at a path; None if there is none, or if it may yet change without a sign."""
    try:
        return identity_of(os.stat(path))
    except OSError:
        return None
