"""Finds the pack of a model, beside it or in the cache. Imports little: most models have none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.base.records import frozen, mutable
from sardonyx.errors import ModelLoadCanceled, SardonyxError
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes
from sardonyx.pack.errors import InvalidPack, OptionsMismatch
from sardonyx.weights.layouts import LayoutCache

SUFFIX: Final = ".pack"
FULL: Final = "full"  # every byte is verified
SAMPLED: Final = "sampled"  # a block of each weight
NONE: Final = "none"
Settings = dict[str, Any]  # options that change a lowered graph, by name


@frozen
class PackOptions:
    """Where packs are searched and cached, and how they are verified."""

    cache: str | None = None  # a folder; packs that are missing are written to it
    verify: bool = False  # every byte, whatever the verification cache says
    check: str | None = None  # how much is verified if nothing can be remembered; None: FULL


@mutable
class LoweredModel:
    """A lowered model, from a pack or from the passes, and the layouts of its constants."""

    model: Model
    layouts: LayoutCache  # finds those that the pack has
    is_standalone: bool = False


def can_have_pack(model: ModelBytes) -> bool:
    """Whether the bytes of a model are immutable, so that a pack can replace them."""
    return model.source.is_fixed and not model.files.in_memory


def may_have_pack(model: ModelBytes, options: PackOptions) -> bool:
    """Whether there may be a pack: a cheap test before anything else is imported."""
    path = model.files.model_path
    return options.cache is not None or (path is not None and os.path.lexists(path + SUFFIX))


def find_pack(
    model: ModelBytes,
    settings: Callable[[], Settings],
    options: PackOptions,
    check: Callable[[], None] = lambda: None,
) -> LoweredModel | None:
    """Return the model of the first pack that is valid; warn of others.

    `check` is called while weights are verified, and may raise to cancel the load.
    """
    for path in _candidates(model, settings, options):
        if not os.path.lexists(path):
            continue
        from sardonyx.pack.read import read_pack

        try:
            return read_pack(path, model, settings(), options, check)
        except ModelLoadCanceled:  # a SardonyxError, but no fault of the pack
            raise
        except InvalidPack as error:
            hint = _hint(model, path, error, settings())
            logger.warning("the pack %s is not used: %s%s", path, error, hint)
        except SardonyxError as error:
            logger.warning("the pack %s is not used: %s", path, error.what)
    return None


def _hint(model: ModelBytes, path: str, error: InvalidPack, settings: Settings) -> str:
    """Return what to do about a pack; none for one in a cache, which is written again."""
    from sardonyx.pack.identity import level_name
    from sardonyx.save.model import is_stub

    model_path = model.files.model_path
    if model_path is None or path != model_path + SUFFIX:
        return ""
    # A standalone model is a stub: the graph is in the pack alone.
    if is_stub(model.source.data):
        return "; pack the model that it was made of again, with --standalone"
    option = error.option if isinstance(error, OptionsMismatch) else ""
    if option not in ("", "level", "version"):  # the command line has no others
        return "; sardonyx.pack_cache keeps a pack for each choice of options"
    flag = f" --optimization-level {level_name(settings)}" if option == "level" else ""
    return f"; run `sardonyx pack {model_path}{flag}` again"


def cache_path(model: ModelBytes, settings: Settings, folder: str) -> str:
    """Return the path of a model's pack in a cache folder."""
    from sardonyx.pack import identity

    return os.path.join(folder, identity.pack_name(identity.fingerprint(model), settings))


def _candidates(
    model: ModelBytes, settings: Callable[[], Settings], options: PackOptions
) -> Iterator[str]:
    # Beside the model first: it was written on purpose, and needs no fingerprint to be found.
    if model.files.model_path is not None:
        yield model.files.model_path + SUFFIX
    if options.cache is not None:
        yield cache_path(model, settings(), options.cache)
