"""From SessionOptions to the placement of nodes on providers: assignments, limits, fallback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.base.records import replace
from sardonyx.compile import Options
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.ort.config_keys import Keys
from sardonyx.ort.options import SessionOptions, flag
from sardonyx.place import Placement, PlacementPreferences, Provider, has_device
from sardonyx.place.preferences import Assignment
from sardonyx.providers import CPU

_LAYERS: Final = (Keys.NAMED_LAYER_ASSIGNMENT, Keys.LAYER_ASSIGNMENT)


def check_cpu_fallback(options: SessionOptions, placement: Placement) -> None:
    """Raise an error if nodes run on the CPU and the options forbid it."""
    if not flag(options, Keys.NO_CPU_FALLBACK):
        return
    on_cpu = [node for node, provider in placement.where.items() if not has_device(provider)]
    if on_cpu:
        reasons = "; ".join(why for _, why in placement.refusals.get(on_cpu[0], ()))
        raise Fail(
            f"{len(on_cpu)} of {len(placement.where)} nodes run on the CPU, "
            f"and {Keys.NO_CPU_FALLBACK} forbids it",
            node=on_cpu[0],
            why=reasons or "no other provider is in use",
            hint="remove the key, or add a provider that supports these nodes",
        )


def fallback_providers(
    options: SessionOptions, in_use: Mapping[str, dict[str, str]], requested: Any
) -> list[tuple[str, dict[str, str]]]:
    """Return the providers to try when the first one fails to load a model.

    None unless the user listed the CPU among the requested ones and did not forbid the fallback.
    """
    names = [p if isinstance(p, str) else p[0] for p in requested or ()]
    if flag(options, Keys.NO_CPU_FALLBACK) or CPU not in names:
        return []
    return list(in_use.items())[1:]


def placement_preferences(
    options: SessionOptions, providers: Sequence[Provider]
) -> PlacementPreferences:
    """Return the assignments of nodes to providers and the memory limits of devices."""
    with_device = [p for p in providers if has_device(p)]
    totals = {p.device: limit for p in with_device if (limit := getattr(p, "limit_bytes", 0))}
    entries = options._entries
    limits = {}
    if entries.get(Keys.CUDA_PARTITIONING):
        size = entries[Keys.CUDA_PARTITIONING].partition(",")[0].strip()
        if size and not size.isdecimal():
            raise InvalidArgument(
                f"{Keys.CUDA_PARTITIONING} must begin with a limit in KB, got {size!r}"
            )
        limits = {p.device: int(size) << 10 for p in with_device if size}
    patterns = _pattern_assignments(entries.get(Keys.PLACEMENT, ""))
    assignments = [*patterns, *_layer_assignments(entries)]
    for target in {a.target: a for a in assignments if not any(map(a.allows, providers))}:
        logger.warning(
            "nodes are assigned to %s, which is not among the providers: they run on the CPU",
            target,
        )
    return PlacementPreferences(tuple(assignments), limits, totals)


def _pattern_assignments(text: str) -> Iterator[Assignment]:
    """Parse Sardonyx's syntax "pattern=cuda;pattern=cpu"; the first match counts."""
    for entry in filter(None, text.split(";")):
        pattern, _, target = entry.rpartition("=")
        if not pattern or not target:
            raise InvalidArgument(
                f"{Keys.PLACEMENT} must list patterns of node names with a provider each, as in "
                f"encoder/*=cuda;*=cpu, got {text!r}"
            )
        yield Assignment(pattern.strip(), target.strip().lower())


def _layer_assignments(entries: Mapping[str, str]) -> Iterator[Assignment]:
    """Parse onnxruntime's syntax "gpu(text,=text);cpu(text)".

    A node matches if its name contains a text or, after "=", begins with it.
    """
    text = next((entries[key] for key in _LAYERS if entries.get(key)), "")
    if not text:
        return
    import glob  # few sessions assign layers: its import would slow down the start of the others

    for entry in filter(None, text.split(";")):
        target, opening, names = entry.strip().partition("(")
        if not opening or not names.endswith(")"):
            raise InvalidArgument(
                f"{_LAYERS[0]} must list devices with parts of node names, as in "
                f"gpu(layers.0,layers.1), got {text!r}"
            )
        for name in names[:-1].split(","):
            is_prefix = name.strip().startswith("=")
            literal = glob.escape(name.strip().lstrip("="))
            pattern = f"{literal}*" if is_prefix else f"*{literal}*"
            yield Assignment(pattern, target.strip().lower())


def device_options(
    base: Options, providers: Sequence[Provider], preferences: PlacementPreferences
) -> dict[str, Any]:
    """Return the compile options that depend on whether a provider has a device of its own."""
    if not any(map(has_device, providers)):
        return {"preferences": preferences}
    devices = [p for p in providers if has_device(p)]
    device_fusion = all(getattr(p, "accepts_fused_ops", False) for p in devices)
    # Without a list of its ops, a device gets nodes as the model has them.
    kernels: list[frozenset[Any] | None] = [getattr(p, "kernels", None) for p in devices]
    listed = [ops for ops in kernels if ops is not None]
    known = frozenset.intersection(*listed) if len(listed) == len(devices) else None
    passes = replace(base.passes, for_device=True, device_fusion=device_fusion, device_ops=known)
    # A pack stores a graph lowered for the CPU, with weights in CPU layouts.
    return {"preferences": preferences, "passes": passes, "pack": None}
