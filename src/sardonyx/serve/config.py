"""The configuration of a server: records with defaults, and the TOML file that sets them."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from sardonyx.base.records import field, field_names, frozen, replace
from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.passes.options import PRECISIONS
from sardonyx.serve.batching.settings import BatchSettings
from sardonyx.serve.protocol.limits import Limits

LOADS: Final = ("start", "request")
LOGS: Final = ("text", "json")


@frozen
class ModelConfig:
    """How one model is loaded and batched."""

    path: str = ""
    versions: str = "latest"  # or all
    providers: tuple[tuple[str, Mapping[str, str]], ...] = ()
    precision: str = "exact"
    threads: int = 0  # 0: as many as the server
    max_batch: int = 64
    max_delay_ms: float = 5.0
    concurrency: int = 1
    queue: int = 256
    timeout_s: float = 0.0  # 0: none unless a request has one
    pad: str = "auto"  # or off, or always
    pad_values: Mapping[str, float] = field(default_factory=dict)
    session: Mapping[str, str] = field(default_factory=dict)  # config entries

    def batch_settings(self) -> BatchSettings:
        """Return the settings of the model's queue."""
        return BatchSettings(
            self.max_batch,
            self.max_delay_ms * 1e-3,
            self.concurrency,
            self.queue,
            default_timeout_s=self.timeout_s or None,
        )


@frozen
class ServerConfig:
    """The configuration of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = -1  # -1: no gRPC; 0: any
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    defaults: ModelConfig = ModelConfig()  # of models in folders
    folders: tuple[str, ...] = ()
    workers: int = 1
    threads: int = 0
    load: str = "start"
    memory_limit: int = 0  # bytes of weights; 0: none
    watch_s: float = 0.0  # 0: files are not watched
    model_control: bool = False
    token_file: str = ""
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    allow_hosts: tuple[str, ...] = ()
    max_body: int = 64 << 20
    max_held: int = 1 << 30  # bytes of all bodies over HTTP that are being received or answered
    max_json: int = 8 << 20
    max_tensors: int = 64
    max_elements: int = 1 << 28
    max_run_memory: int = 0  # bytes of one run's arena; 0: none
    max_connections: int = 1024
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    linger_s: float = 0.0  # not ready, but still answering, before shutdown
    drain_s: float = 30.0
    log: str = "text"
    access_log: bool = False
    traces: str = ""  # an OTLP endpoint
    pack_cache: str = ""  # a folder for packs, which workers share

    def limits(self) -> Limits:
        """Return the limits of one request."""
        return Limits(self.max_body, self.max_json, self.max_tensors, elements=self.max_elements)

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "tuple[str, ...]": (list,),
}
_POSITIVE: Final = frozenset(("max_batch", "concurrency", "queue", "workers", "max_connections"))


def read_config(path: str) -> ServerConfig:
    """Return the configuration of a TOML file; its paths are relative to its folder."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise NoSuchFile(f"the configuration {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgument(f"{path} is not TOML: {error}") from None
    config = parse_config(content, path)
    return _resolved(config, os.path.dirname(os.path.abspath(path)))


def parse_config(content: Mapping[str, Any], where: str) -> ServerConfig:
    """Return the configuration that nested mappings describe; `where` is for errors."""
    own = {k: v for k, v in content.items() if k not in ("models", "defaults")}
    values: ServerConfig = _checked(ServerConfig(), own, where)
    defaults = _model(ModelConfig(), content.get("defaults", {}), f"[defaults] of {where}")
    models = content.get("models", {})
    if not isinstance(models, dict):
        raise InvalidArgument(f"models of {where} must be a table for each model: [models.NAME]")
    found = {
        name: _model(defaults, table, f"[models.{name}] of {where}")
        for name, table in models.items()
    }
    config = replace(values, defaults=defaults, models=found)
    check(config)
    return config


def check(config: ServerConfig) -> None:
    """Raise an error for values out of range and contradictory options."""
    _choice("load", config.load, LOADS)
    _choice("log", config.log, LOGS)
    for name, port in (("port", config.port), ("grpc_port", config.grpc_port)):
        if not -1 <= port <= 65535:
            raise InvalidArgument(f"{name} must be a number up to 65535, got {port}")
    if bool(config.certificate) != bool(config.key):
        raise InvalidArgument("TLS needs both certificate and key")
    if config.client_ca and not config.certificate:
        raise InvalidArgument("client_ca is for TLS, which needs certificate and key")
    for record in (config, config.defaults, *config.models.values()):
        for name in field_names(record):
            value = getattr(record, name)
            if isinstance(value, int | float) and value < (name in _POSITIVE) and value != -1:
                raise InvalidArgument(f"{name} is {value}, which is too small")
    for model in (config.defaults, *config.models.values()):
        _choice("versions", model.versions, ("latest", "all"))
        _choice("pad", model.pad, ("auto", "off", "always"))
        _choice("precision", model.precision, tuple(PRECISIONS))


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _checked(record: Any, values: Mapping[str, Any], where: str) -> Any:
    """Return the record with values of the annotated types."""
    known = [n for n in field_names(record) if n not in ("models", "defaults")]
    annotations = type(record).__annotations__
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidArgument(f"{where} has an unknown key {name}{hint}")
        accepted = _TYPES.get(annotations[name], (dict,))
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            kind = " or ".join(each.__name__ for each in accepted)
            raise InvalidArgument(f"{name} of {where} must be of type {kind}, got {value!r:.60}")
        changes[name] = tuple(map(str, value)) if isinstance(value, list) else value
    return replace(record, **changes)


def _model(defaults: ModelConfig, table: object, where: str) -> ModelConfig:
    if not isinstance(table, dict):
        raise InvalidArgument(f"{where} must be a table")
    values = dict(table)
    providers = values.pop("providers", None)
    model: ModelConfig = _checked(defaults, values, where)
    model = replace(model, session={str(k): str(v) for k, v in model.session.items()})
    return model if providers is None else replace(model, providers=_providers(providers, where))


def _providers(value: object, where: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """Return providers from a list of names, or of tables with a name and options."""
    found: list[tuple[str, Mapping[str, str]]] = []
    for each in value if isinstance(value, list) else [None]:
        if isinstance(each, str):
            found.append((each, {}))
        elif isinstance(each, dict) and isinstance(each.get("name"), str):
            options = {str(k): str(v) for k, v in each.items() if k != "name"}
            found.append((each["name"], options))
        else:
            form = '{ name = "...", KEY = "..." }'
            raise InvalidArgument(f"providers of {where} must be a list of names, or of {form}")
    return tuple(found)


def _resolved(config: ServerConfig, folder: str) -> ServerConfig:
    def at(path: str) -> str:
        return os.path.join(folder, path) if path else ""

    models = {}
    for name, model in config.models.items():
        if not model.path:
            raise InvalidArgument(f"[models.{name}] has no path")
        models[name] = replace(model, path=at(model.path))
    names = ("token_file", "certificate", "key", "client_ca", "pack_cache")
    paths = {name: at(getattr(config, name)) for name in names}
    return replace(config, models=models, folders=tuple(map(at, config.folders)), **paths)
