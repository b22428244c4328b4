"""Execution providers by the names that onnxruntime gives them."""

from __future__ import annotations

from collections.abc import Sequence
from logging import Logger
from typing import Any, Final

from sardonyx.log import logger
from sardonyx.place.provider import Provider
from sardonyx.providers.cpu import Cpu
from sardonyx.providers.reference import Reference

CPU: Final = "CPUExecutionProvider"
AVAILABLE: Final = (CPU,)
ALL: Final = tuple(
    f"{name}ExecutionProvider"
    for name in (
        "NvTensorRTRTX", "Tensorrt", "CUDA", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN",
        "Nnapi", "VSINPU", "Js", "CoreML", "ACL", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack",
        "CANN", "Azure", "CPU",
    )
)  # fmt: skip

Options = dict[str, dict[str, str]]


def resolve(
    providers: Any, provider_options: Any, logger: Logger = logger
) -> tuple[Options, tuple[Provider, ...]]:
    """The providers to use, with their options, from what a session was given; the CPU is last."""
    wanted = normalized(providers or (CPU,), provider_options, AVAILABLE, logger)
    wanted.setdefault(CPU, {})
    return wanted, (Cpu(), Reference())


def normalized(
    providers: Any, provider_options: Any, available: Sequence[str], logger: Logger = logger
) -> Options:
    """Those of the providers that are available, each once, with options as texts."""
    wanted: Options = {}
    for name, options in _pairs(providers, provider_options):
        if name in wanted:
            logger.warning("the provider %s is named twice; the second one is ignored", name)
        elif name not in available:
            logger.warning(
                "the provider %s is not available; there are %s", name, ", ".join(available)
            )
        else:
            wanted[name] = {str(k): str(v) for k, v in options.items()}
    return wanted


def _pairs(providers: Any, provider_options: Any) -> list[tuple[str, dict[Any, Any]]]:
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError(  # noqa: TRY004 - onnxruntime raises ValueError here
            "providers is a sequence of names, or of pairs of a name and its options"
        )
    if provider_options is not None:
        if len(provider_options) != len(providers) or not all(
            isinstance(p, str) for p in providers
        ):
            raise ValueError(
                f"provider_options gives one dict for each of {len(providers)} plain provider names"
            )
        return list(zip(providers, provider_options, strict=True))
    pairs: list[tuple[str, dict[Any, Any]]] = []
    for given in providers:
        match given:
            case str(name):
                pairs.append((name, {}))
            case (str(name), dict(options)):
                pairs.append((name, options))
            case _:
                raise ValueError(
                    f"a provider is a name, or a name with a dict of options, not {given!r}"
                )
    return pairs
