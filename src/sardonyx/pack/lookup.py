"""Finds the pack of a model. Light on imports: most models have none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.base.records import frozen, mutable
from sardonyx.errors import ModelLoadCanceled, SardonyxError
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes
from sardonyx.pack.errors import Broken, OtherOptions
from sardonyx.weights.layouts import Forms

SUFFIX: Final = ".pack"
FULL: Final = "full"  # every byte is compared
SAMPLED: Final = "sampled"  # a block out of each weight
NONE: Final = "none"
Settings = dict[str, Any]  # the options that change a lowered graph, by name


@frozen
class PackOptions:
    """Where packs are looked for, and whether one is written that is missing."""

    cache: str | None = None  # a folder: read, and written to
    verify: bool = False  # every byte, whatever is known
    check: str | None = None  # how much is compared where nothing can be remembered; None: all


@mutable
class Found:
    """A model out of a pack, and its constants in the forms that the pack has."""

    model: Model
    forms: Forms
    is_standalone: bool = False


def serves(given: ModelBytes) -> bool:
    """Whether the bytes of a model stay what they are, so that a pack may stand for them."""
    return given.source.is_fixed and not given.files.in_memory


def may_have(given: ModelBytes, options: PackOptions) -> bool:
    """Whether there is any place to look into."""
    path = given.files.model_path
    return options.cache is not None or (path is not None and os.path.lexists(path + SUFFIX))


def find(
    given: ModelBytes,
    settings: Callable[[], Settings],
    options: PackOptions,
    check: Callable[[], None] = lambda: None,
) -> Found | None:
    """The model out of the first pack that fits, beside it or in the cache; others are reported.

    `check` is called while weights are compared, and may raise to end the load.
    """
    for path in _candidates(given, settings, options):
        if not os.path.lexists(path):
            continue
        from sardonyx.pack.read import read

        try:
            return read(path, given, settings(), options, check)
        except ModelLoadCanceled:
            raise
        except Broken as error:
            hint = _hint(given, path, error, settings())
            logger.warning("the pack %s is not used: %s%s", path, error, hint)
        except SardonyxError as error:
            logger.warning("the pack %s is not used: %s", path, error.what)
    return None


def _hint(given: ModelBytes, path: str, error: Broken, settings: Settings) -> str:
    """What to do about a pack; one in a cache is written anew without a word."""
    from sardonyx.pack.identity import LEVELS
    from sardonyx.save.stub import is_stub

    model = given.files.model_path
    if model is None or path != model + SUFFIX:
        return ""
    if is_stub(given.source.data):
        return "; pack the model that it was made of again, with --standalone"
    option = error.option if isinstance(error, OtherOptions) else ""
    wanted = LEVELS[settings["level"]] if option == "level" else ""
    if option not in ("", "level", "version") or wanted == "layout":  # not on the command line
        return "; sardonyx.pack_cache keeps a pack for each choice of options"
    level = f" --optimization-level {wanted}" if wanted else ""
    return f"; run `sardonyx pack {model}{level}` again"


def cache_path(given: ModelBytes, settings: Settings, folder: str) -> str:
    """Where a model's pack lies in a folder of many."""
    from sardonyx.pack import identity

    return os.path.join(folder, identity.name(identity.digest(given), settings))


def _candidates(
    given: ModelBytes, settings: Callable[[], Settings], options: PackOptions
) -> Iterator[str]:
    if given.files.model_path is not None:
        yield given.files.model_path + SUFFIX
    if options.cache is not None:
        yield cache_path(given, settings(), options.cache)
