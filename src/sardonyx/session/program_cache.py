"""The process-wide program cache: sessions of one model with equal options share one program.

Thread-safe: `PROGRAMS` is a `Store`, whose lock guards its entries and which lets one thread
compile while the others wait for its program. Programs are held weakly: the last session that uses
one frees it. A hit requires equal keys (`cache_key`) and unchanged files (`is_current`).
"""

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

FileState = tuple[str, Hashable | None]  # a path, and the identity of the file found there


@frozen(weakref_slot=True)
class SharedProgram:
    """A compiled program ready to run, its block pool, and the model bytes that it refers to."""

    compiled: Compiled
    source: ModelBytes
    pool: BlockPool
    files: tuple[FileState, ...]  # external data files, besides the model's own

    @property
    def is_current(self) -> bool:
        """Whether loading the model now would read the same files."""
        return all(was is not None and _identity(path) == was for path, was in self.files)


PROGRAMS: Final[Store[SharedProgram]] = Store(lambda program: program.is_current)


def cache_key(
    source: ModelBytes, options: Options, settings: RunSettings, providers: Hashable
) -> Hashable | None:
    """Return a key that is equal for sessions that may share a program; None: not shareable.

    Addresses of buffers are part of the key: a program refers to the bytes it was compiled from.
    """
    load, files = options.load, source.files
    # A hit would skip saving; initializers and copies are memory of one session alone.
    if options.save is not None or load.initializers or load.copies or not source.source.is_fixed:
        return None
    pack = None if files.model_path is None else files.model_path + SUFFIX
    buffers = files.buffers()
    if buffers is None or (pack is not None and os.path.lexists(pack) and _identity(pack) is None):
        return None
    return (
        source.source.at(0),
        source.source.data.nbytes,
        files.folder,
        files.model_path,
        buffers,
        tuple(sorted(load.dims_by_name.items())),
        tuple(sorted(load.dims_by_denotation.items())),
        (load.split_names, load.fixes_defaults, load.is_strict, load.most_nodes, load.most_bytes),
        options.outputs,
        options.passes,
        options.pack,
        None if pack is None else _identity(pack),
        options.container,
        options.preferences.key,
        _order_key(options.order),
        None if options.shapes is None else tuple(sorted(options.shapes.items())),
        settings,
        providers,
        custom_ops(),
    )


def _order_key(order: OrderOptions) -> Hashable:
    hints = tuple(sorted(order.hints.items()))
    inputs = order.consumes_inputs, order.held_inputs
    return order.order, order.effort, order.branches, inputs, hints


def _identity(path: str) -> Hashable | None:
    """Return the identity of the file at a path.

    None if there is no file, or if it was written so recently that its times may not tell a later
    change from this state.
    """
    try:
        return identity_of(os.stat(path))
    except OSError:
        return None
