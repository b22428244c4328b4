"""Starts the torch provider, if torch is there and its device works."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

from sardonyx.base.log import Logger
from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.place.provider import Provider

_NAMES: Final = {"CUDAExecutionProvider": "cuda", "TorchExecutionProvider": "torch"}


def torch_provider(name: str, options: Mapping[str, str], logger: Logger) -> Provider:
    """The provider of one of the names that torch serves."""
    if importlib.util.find_spec("torch") is None:
        raise RuntimeException(
            f"{name} needs torch, which is not installed", hint="pip install torch"
        )
    from sardonyx.providers.torch import Torch
    from sardonyx.providers.torch.options import parse

    short = _NAMES[name]
    if short == "cuda":
        if options.get("device", "cuda").partition(":")[0] != "cuda":
            raise InvalidArgument(f"{name} has the device cuda, not {options['device']!r}")
        options = {"device": "cuda", **options}
    return Torch(short, parse(options, logger.warning))
