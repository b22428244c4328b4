"""Execution providers by the names that onnxruntime gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.log import Logger, logger
from sardonyx.errors import SardonyxError
from sardonyx.place.provider import Provider
from sardonyx.providers.cpu import Cpu
from sardonyx.providers.reference import Reference

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TORCH: Final = "TorchExecutionProvider"
Factory = Callable[[Mapping[str, str]], Provider]
_OWN: Final[dict[str, Factory]] = {}  # those of users, by name
ALL: Final = tuple(
    f"{name}ExecutionProvider"
    for name in (
        "NvTensorRTRTX", "Tensorrt", "CUDA", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN",
        "Nnapi", "VSINPU", "Js", "CoreML", "ACL", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack",
        "CANN", "Azure", "CPU",
    )
)  # fmt: skip

Options = dict[str, dict[str, str]]


def available() -> tuple[str, ...]:
    """The providers that programs may ask for without knowing this machine, the best first."""
    from sardonyx.providers.probe import cuda_may_work

    return (*_OWN, *((CUDA,) if cuda_may_work() else ()), CPU)


def register_provider(name: str, factory: Factory) -> None:
    """Makes a provider known under a name: `factory` makes one of its options for each session."""
    if name in ALL or name == TORCH or not name:
        raise ValueError(f"{name!r} is no name for a provider of one's own")
    _OWN[name] = factory


def unregister_provider(name: str) -> None:
    """Forgets a provider that was registered; sessions that use it keep it."""
    if name not in _OWN:
        raise ValueError(f"no provider {name!r} was registered")
    del _OWN[name]


def resolve(
    providers: Any, provider_options: Any, logger: Logger = logger
) -> tuple[Options, tuple[Provider, ...]]:
    """The providers to use, with their options, from what a session was given; the CPU is last.

    One that cannot start is left out with a warning: those behind it serve.
    """
    known: tuple[str, ...] = (CPU,)
    if any(name != CPU for name, _ in _pairs(providers or (CPU,), provider_options)):
        from sardonyx.providers.probe import has_torch  # looks for files

        known = (*((TORCH,) if has_torch() else ()), *available())
    wanted = normalized(providers or (CPU,), provider_options, known, logger)
    made: list[Provider] = []
    for name, options in list(wanted.items()):
        if name == CPU:
            break  # it takes every node
        try:
            made.append(_start(name, options, logger))
        except SardonyxError as error:
            logger.warning("the provider %s is not used: %s", name, error)
            del wanted[name]
    wanted.setdefault(CPU, {})
    return wanted, (*made, Cpu(), Reference())


def _start(name: str, options: Mapping[str, str], logger: Logger) -> Provider:
    if name in _OWN:
        return _OWN[name](options)
    from sardonyx.providers.start import torch_provider  # torch is slow to import

    return torch_provider(name, options, logger)


def normalized(
    providers: Any, provider_options: Any, available: Sequence[str], logger: Logger = logger
) -> Options:
    """Those of the providers that are available, each once, with options as texts."""
    wanted: Options = {}
    for name, options in _pairs(providers, provider_options):
        if name in wanted:
            logger.warning("the provider %s is named twice; the second one is ignored", name)
        elif name not in available:
            there = ", ".join(available)
            logger.warning(
                "the provider %s is not available%s; there are %s", name, _why(name), there
            )
        else:
            wanted[name] = {str(k): str(v) for k, v in options.items()}
    return wanted


def _why(name: str) -> str:
    """What is missing for a provider that is not available, where that can be said."""
    if name not in (CUDA, TORCH):
        return ""
    from sardonyx.providers.probe import why_no_cuda

    return f": {why_no_cuda() if name == CUDA else 'torch is not installed'}"


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
