"""`sardonyx serve`: answers inference requests over HTTP and gRPC."""

from __future__ import annotations

import argparse
import os
import pathlib
from typing import Any

from sardonyx.base.records import replace
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.console import note
from sardonyx.serve import ModelConfig, ServerConfig, check_installed, read_config
from sardonyx.serve.config import check
from sardonyx.serve.models.sources import named


def command(arguments: argparse.Namespace) -> int:
    """Serve models until a signal."""
    config = config_of(arguments)
    check_installed(config)
    from sardonyx.serve.main import serve  # imports the packages of the extra

    if not config.is_loopback and not config.token_file:
        note(f"whoever can reach {config.host} can use this server: --token-file asks for a token")
    return serve(config)


def config_of(arguments: argparse.Namespace) -> ServerConfig:
    """Return the configuration of the file, changed by the options."""
    config = read_config(arguments.config) if arguments.config else ServerConfig()
    given = {
        name: str(value) if isinstance(value, pathlib.Path) else value
        for name, value in vars(arguments).items()
        if name in ServerConfig.__match_args__ and value is not None and value is not False
    }
    if not arguments.threads:  # the default of the option, not a choice
        del given["threads"]
    folders = tuple(given.pop("folders"))
    defaults = _defaults(config.defaults, arguments)
    models = {**config.models, **_models(arguments.models, defaults)}
    given.pop("models", None)
    config = replace(
        config, defaults=defaults, models=models, folders=config.folders + folders, **given
    )
    if not config.models and not config.folders:
        raise UsageError("name a model, or a folder of models with --folders")
    check(config)
    return config


def _defaults(defaults: ModelConfig, arguments: argparse.Namespace) -> ModelConfig:
    names = ("precision", "max_batch", "max_delay_ms", "queue", "concurrency")
    changes: dict[str, Any] = {
        name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None
    }
    if arguments.provider:
        changes["providers"] = tuple(arguments.provider)
    return replace(defaults, **changes)


def _models(texts: list[str], defaults: ModelConfig) -> dict[str, ModelConfig]:
    models: dict[str, ModelConfig] = {}
    for text in texts:
        name, path = named(text)
        if name in models:
            raise UsageError(f"two models are named {name}: name them, as in {name}2={path}")
        if not os.path.exists(path):
            raise UsageError(f"there is no model {path}")
        models[name] = replace(defaults, path=path)
    return models
