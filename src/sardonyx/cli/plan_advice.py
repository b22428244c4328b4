"""Advice on how to lower the peak memory of a run, computed from its timelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.base.units import format_bytes
from sardonyx.cli.console import short_name
from sardonyx.errors import SardonyxError
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.reports.timeline import Tensor, Timeline, simulate

# Shares of the peak that are worth mentioning.
_MUCH: Final = 0.1
_SOME: Final = 0.02
_HOLDERS: Final = 3  # of the largest tensors
_DIMS: Final = 6
_LONG: Final = 3  # steps that a tensor is idle
# Prefixes of kernels that compute in float32 for every input type.
_FLOAT32: Final = ("conv", "max_pool", "average_pool", "lp_pool", "lstm", "gru", "rnn", "resize")

At = Callable[[Mapping[str, int]], Timeline]


@frozen
class Advice:
    """A change, and the bytes that it saves."""

    kind: str
    text: str
    saves_bytes: int


def advise(timelines: Mapping[str, Timeline], dims: Mapping[str, int], at: At) -> list[Advice]:
    """Return advice on the first timeline, by savings. `at` plans for other sizes."""
    shown = next(iter(timelines.values()))
    advice = [
        *_orders(timelines, shown),
        *_sizes(shown, dims, at),
        *_half(shown),
        *_holders(shown),
        *_scratch(shown),
        *_outputs(shown),
        *_gaps(shown),
    ]
    return sorted(advice, key=lambda a: -a.saves_bytes)


def _orders(timelines: Mapping[str, Timeline], shown: Timeline) -> Iterator[Advice]:
    best = min(timelines.values(), key=lambda t: t.peak_bytes)
    saved = shown.peak_bytes - best.peak_bytes
    if saved > 0:
        text = f"the order {best.order} needs {format_bytes(saved)} less: sardonyx.execution_order"
        yield Advice("order", text, saved)


def _sizes(shown: Timeline, dims: Mapping[str, int], at: At) -> Iterator[Advice]:
    """Yield the effect of input sizes that change the peak: halved, or doubled from 1."""
    for name, now in list(dims.items())[:_DIMS]:
        other = now // 2 if now > 1 else 2
        try:
            changed = at({name: other})
        except (SardonyxError, AssumptionFailed):
            continue  # the model does not accept this size
        saved = _total(shown) - _total(changed)
        each = saved // (now - other)
        if each <= 0:
            continue
        if now > 1:
            less = f"{format_bytes(_total(shown))} to {format_bytes(_total(changed))} with outputs"
            text = f"{short_name(name)} {now} to {other}: {less}, {format_bytes(each)} for each"
            yield Advice("size", text, saved)
        else:
            more = f"{other} need {format_bytes(each)} more"
            text = f"{short_name(name)} is 1 and cannot shrink: {more}"
            yield Advice("size", text, 0)


def _total(timeline: Timeline) -> int:
    return timeline.peak_bytes + timeline.output_bytes


def _half(shown: Timeline) -> Iterator[Advice]:
    """Yield the savings of 16-bit floats, if kernels then hold their values in 16 bits."""
    is_mixed = any(t.dtype in ("f16", "bf16") for t in shown.tensors)
    if is_mixed or any(s.kernel.startswith(_FLOAT32) or "ml." in s.op for s in shown.steps):
        return
    wide = [t for t in shown.tensors if t.dtype == "f32" and t.kind == "value"]
    bytes_of = simulate(wide, len(shown.steps), len(shown.arenas)).needs
    rest = (need - part // 2 for need, part in zip(shown.needs, bytes_of, strict=True))
    saved = shown.lower_bound - max(rest, default=0)
    if saved > _MUCH * shown.lower_bound:
        text = f"float16 or bfloat16 values save {format_bytes(saved)} of the peak's live bytes"
        yield Advice("type", text, saved)


def _holders(shown: Timeline) -> Iterator[Advice]:
    """Yield large tensors that are live but idle at the peak."""
    waiting = [t for t in shown.alive(shown.peak_step) if t.idle >= _LONG and _is_much(t, shown)]
    for tensor in waiting[:_HOLDERS]:
        name, maker = short_name(tensor.name), short_name(tensor.maker)
        reader = short_name(shown.steps[tensor.end].name)
        text = (
            f"{name}, {format_bytes(tensor.bytes)}, made by {maker} in step {tensor.made + 1}, "
            f"is idle for {tensor.idle} steps until {reader} in step {tensor.end + 1}"
        )
        yield Advice("held", text, tensor.bytes)


def _is_much(tensor: Tensor, shown: Timeline) -> bool:
    return tensor.bytes > _MUCH * shown.lower_bound


def _scratch(shown: Timeline) -> Iterator[Advice]:
    for tensor in shown.alive(shown.peak_step):
        if tensor.kind == "scratch" and _is_much(tensor, shown):
            kernel = shown.steps[shown.peak_step].kernel
            scratch = format_bytes(tensor.bytes)
            text = f"{short_name(tensor.maker)} ({kernel}) uses {scratch} of scratch"
            yield Advice("scratch", text, tensor.bytes)


def _outputs(shown: Timeline) -> Iterator[Advice]:
    outputs = sorted((t for t in shown.tensors if t.kind == "output"), key=lambda t: -t.bytes)
    if len(outputs) < 2:
        return
    if outputs[0].bytes <= _MUCH * _total(shown) and shown.output_bytes > shown.peak_bytes:
        text = (
            f"{len(outputs)} outputs add {format_bytes(shown.output_bytes)}, "
            f"{short_name(outputs[0].name)} {format_bytes(outputs[0].bytes)} as the largest"
        )
        yield Advice("output", text, shown.output_bytes)
    for tensor in outputs:
        if tensor.bytes > _MUCH * _total(shown):
            text = (
                f"the output {short_name(tensor.name)} adds {format_bytes(tensor.bytes)}: "
                "remove it from the model if it is not needed"
            )
            yield Advice("output", text, tensor.bytes)


def _gaps(shown: Timeline) -> Iterator[Advice]:
    saved = shown.peak_bytes - shown.lower_bound
    if saved > _SOME * shown.lower_bound:
        text = f"{format_bytes(saved)} of the peak are gaps between tensors: try --effort 3"
        yield Advice("gaps", text, saved)
