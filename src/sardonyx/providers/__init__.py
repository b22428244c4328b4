"""Execution providers by the names that onnxruntime gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.log import Logger, logger
from sardonyx.errors import InvalidArgument, RuntimeException, SardonyxError, ValueFault
from sardonyx.place.provider import Provider
from sardonyx.providers.cpu import Cpu
from sardonyx.providers.reference import Reference

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TORCH: Final = "TorchExecutionProvider"
Factory = Callable[[Mapping[str, str]], Provider]
_REGISTERED: Final[dict[str, Factory]] = {}  # by users
# All names of onnxruntime: those that are not available here are skipped with a warning.
_SUFFIX: Final = "ExecutionProvider"
ALL: Final = tuple(
    f"{name}{_SUFFIX}"
    for name in (
        "NvTensorRTRTX", "Tensorrt", "CUDA", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN",
        "Nnapi", "VSINPU", "Js", "CoreML", "ACL", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack",
        "CANN", "Azure", "CPU",
    )
)  # fmt: skip

Options = dict[str, dict[str, str]]


def available() -> tuple[str, ...]:
    """Return the providers that this machine can have, in the order of preference."""
    from sardonyx.providers.probe import cuda_may_work

    return (*_REGISTERED, *((CUDA,) if cuda_may_work() else ()), CPU)


def register_provider(name: str, factory: Factory) -> None:
    """Register a provider under a name; `factory` creates one per session, from its options."""
    if name in ALL or name == TORCH or not name:
        raise ValueError(f"{name!r} is not a name for a custom provider")
    _REGISTERED[name] = factory


def unregister_provider(name: str) -> None:
    """Unregister a provider; sessions that use it keep it."""
    if name not in _REGISTERED:
        raise ValueError(f"no provider {name!r} was registered")
    del _REGISTERED[name]


def resolve(
    providers: Any, provider_options: Any, logger: Logger = logger
) -> tuple[Options, tuple[Provider, ...]]:
    """Return the options of a session's providers by name, and the providers; the CPU is last.

    One that cannot start is left out with a warning.
    """
    # Sessions on the CPU alone, which are most, do not probe for torch.
    known: tuple[str, ...] = (CPU,)
    if any(name != CPU for name, _ in _pairs(providers or (CPU,), provider_options)):
        from sardonyx.providers.probe import has_torch  # looks for files

        known = (*((TORCH,) if has_torch() else ()), *available())
    requested = normalized(providers or (CPU,), provider_options, known, logger)
    started: list[Provider] = []
    for name, options in list(requested.items()):
        if name == CPU:
            break  # it claims every node that the ones before refuse
        try:
            started.append(_start(name, options, logger))
        except SardonyxError as error:
            logger.warning("the provider %s is not used: %s", name, error)
            del requested[name]
    requested.setdefault(CPU, {})
    return requested, (*started, Cpu(), Reference())


def _start(name: str, options: Mapping[str, str], logger: Logger) -> Provider:
    return (
        _REGISTERED[name](options) if name in _REGISTERED else torch_provider(name, options, logger)
    )


def torch_provider(name: str, options: Mapping[str, str], logger: Logger) -> Provider:
    """Return the torch provider under the name CUDA or TORCH; raise if torch is not installed."""
    from sardonyx.providers.probe import has_torch

    if not has_torch():
        raise RuntimeException(
            f"{name} needs torch, which is not installed", hint="pip install torch"
        )
    from sardonyx.providers.torch import Torch  # slow to import
    from sardonyx.providers.torch.options import parse

    if name == CUDA:
        if options.get("device", "cuda").partition(":")[0] != "cuda":
            raise InvalidArgument(f"the device of {name} must be cuda, got {options['device']!r}")
        options = {"device": "cuda", **options}
    return Torch("cuda" if name == CUDA else "torch", parse(options, logger.warning))


def normalized(
    providers: Any, provider_options: Any, available: Sequence[str], logger: Logger = logger
) -> Options:
    """Return the options of requested providers that are available, by name; warn of others."""
    requested: Options = {}
    for name, options in _pairs(providers, provider_options):
        if name in requested:
            import warnings  # rarely needed

            what = f"Duplicate provider {name!r}: its first options count"
            warnings.warn(what, UserWarning, stacklevel=2)
        elif name not in available:
            logger.warning(
                "the provider %s is not available%s; %sthere are %s",
                name, _why(name), did_you_mean(name, available), ", ".join(available),
            )  # fmt: skip
        else:
            requested[name] = {str(k): str(v) for k, v in options.items()}
    return requested


def check_names(providers: Any, provider_options: Any) -> None:
    """Raise an error for a name that is neither a provider of this process nor of onnxruntime."""
    for name, _ in _pairs(providers, provider_options):
        if name not in ALL and name != TORCH and name not in _REGISTERED:
            raise ValueFault(
                f"Unknown Provider Type: {name}",
                hint=f"{did_you_mean(name, available())}there are {', '.join(available())}",
            )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question about the nearest name, to begin a hint with; empty for known names."""
    import difflib  # rarely needed

    if name in ALL or name == TORCH:
        return ""
    known = {each.lower(): each for each in (*names, *ALL)}
    known |= {each.removesuffix(_SUFFIX).lower(): each for each in (*ALL, *names)}
    close = difflib.get_close_matches(name.lower(), known, 1)
    return f"did you mean {known[close[0]]}? " if close else ""


def _why(name: str) -> str:
    """Return why a provider is not available, for a message; empty if the name is all we know."""
    if name not in (CUDA, TORCH):
        return ""
    from sardonyx.providers.probe import why_no_cuda

    return f": {why_no_cuda() if name == CUDA else 'torch is not installed'}"


def _pairs(providers: Any, provider_options: Any) -> list[tuple[str, dict[Any, Any]]]:
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError(  # noqa: TRY004 - onnxruntime raises ValueError here
            "providers must be a sequence of names, or of pairs of a name and its options"
        )
    if provider_options is not None:
        is_sequence = isinstance(provider_options, Sequence)
        if not is_sequence or not all(isinstance(each, Mapping) for each in provider_options):
            raise ValueError("provider_options must be a sequence of dicts")
        if len(provider_options) != len(providers) or not all(
            isinstance(p, str) for p in providers
        ):
            raise ValueError(
                f"provider_options must have one dict for each of {len(providers)} plain names"
            )
        return list(zip(providers, provider_options, strict=True))
    pairs: list[tuple[str, dict[Any, Any]]] = []
    for item in providers:
        match item:
            case str(name):
                pairs.append((name, {}))
            case (str(name), dict(options)):
                pairs.append((name, options))
            case _:
                raise ValueError(
                    f"a provider must be a name, or a name with a dict of options, got {item!r}"
                )
    return pairs
