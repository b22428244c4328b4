"""What would make the peak of a run lower, computed from its timelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.cli.term import clean, size
from sardonyx.errors import SardonyxError
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.reports.memory import Tensor, Timeline, simulate

# Parts of the peak below which a thing is not worth a word.
_MUCH: Final = 0.1
_SOME: Final = 0.02
_HOLDERS: Final = 3  # of the largest tensors
_DIMS: Final = 6
_LONG: Final = 3  # steps that a tensor waits
_WIDE: Final = 48  # characters of a name; both ends of it tell names apart
# Beginnings of kernels that compute in float32 whatever they are given.
_FLOAT32: Final = ("conv", "max_pool", "average_pool", "lp_pool", "lstm", "gru", "rnn", "resize")

At = Callable[[Mapping[str, int]], Timeline]


@frozen
class Advice:
    """One thing to do, and what it saves."""

    kind: str
    text: str
    saves_bytes: int


def advise(timelines: Mapping[str, Timeline], dims: Mapping[str, int], at: At) -> list[Advice]:
    """Advice on the first timeline, what saves the most first. `at` plans for other sizes."""
    shown = next(iter(timelines.values()))
    found = [
        *_orders(timelines, shown),
        *_sizes(shown, dims, at),
        *_half(shown),
        *_holders(shown),
        *_scratch(shown),
        *_outputs(shown),
        *_gaps(shown),
    ]
    return sorted(found, key=lambda a: -a.saves_bytes)


def short(name: str) -> str:
    """A name for a line of text: its middle is left out where it is long."""
    name, half = clean(name), (_WIDE - 3) // 2
    return name if len(name) <= _WIDE else f"{name[:half]}...{name[-half:]}"


def _orders(timelines: Mapping[str, Timeline], shown: Timeline) -> Iterator[Advice]:
    best = min(timelines.values(), key=lambda t: t.peak_bytes)
    saved = shown.peak_bytes - best.peak_bytes
    if saved > 0:
        text = f"the order {best.order} takes {size(saved)} less: sardonyx.execution_order"
        yield Advice("order", text, saved)


def _sizes(shown: Timeline, dims: Mapping[str, int], at: At) -> Iterator[Advice]:
    """What the sizes of inputs cost; those that make no difference are left out."""
    for name, now in list(dims.items())[:_DIMS]:
        other = now // 2 if now > 1 else 2
        try:
            there = at({name: other})
        except (SardonyxError, AssumptionFailed):
            continue  # the model does not take it
        saved = _all(shown) - _all(there)
        each = saved // (now - other)
        if each <= 0:
            continue
        if now > 1:
            less = f"{size(_all(shown))} to {size(_all(there))} with outputs"
            text = f"{short(name)} {now} to {other}: {less}, {size(each)} for each"
            yield Advice("size", text, saved)
        else:
            yield Advice("size", f"none yet by {short(name)}: {other} take {size(each)} more", 0)


def _all(found: Timeline) -> int:
    return found.peak_bytes + found.output_bytes


def _half(shown: Timeline) -> Iterator[Advice]:
    """Peak if all tensors of float32 took half as much, where that is all that would change."""
    is_mixed = any(t.dtype in ("f16", "bf16") for t in shown.tensors)
    if is_mixed or any(s.kernel.startswith(_FLOAT32) or "ml." in s.op for s in shown.steps):
        return
    wide = [t for t in shown.tensors if t.dtype == "f32" and t.kind == "value"]
    bytes_of = simulate(wide, len(shown.steps), len(shown.arenas)).needs
    rest = (need - part // 2 for need, part in zip(shown.needs, bytes_of, strict=True))
    saved = shown.lower_bound - max(rest, default=0)
    if saved > _MUCH * shown.lower_bound:
        text = f"float32 as float16 or bfloat16 saves {size(saved)} of what is alive at the peak"
        yield Advice("type", text, saved)


def _holders(shown: Timeline) -> Iterator[Advice]:
    """Large tensors at the peak that wait long for a step to come."""
    waiting = [t for t in shown.alive(shown.peak_step) if t.idle >= _LONG and _is_much(t, shown)]
    for tensor in waiting[:_HOLDERS]:
        name, maker = short(tensor.name), short(tensor.maker)
        reader = short(shown.steps[tensor.end].name)
        text = (
            f"{name}, {size(tensor.bytes)}, made by {maker} in step {tensor.made + 1}, "
            f"waits {tensor.idle} steps and is held for {reader} in step {tensor.end + 1}"
        )
        yield Advice("held", text, tensor.bytes)


def _is_much(tensor: Tensor, shown: Timeline) -> bool:
    return tensor.bytes > _MUCH * shown.lower_bound


def _scratch(shown: Timeline) -> Iterator[Advice]:
    for tensor in shown.alive(shown.peak_step):
        if tensor.kind == "scratch" and _is_much(tensor, shown):
            kernel = shown.steps[shown.peak_step].kernel
            text = f"{short(tensor.maker)} ({kernel}) works in {size(tensor.bytes)} of scratch"
            yield Advice("scratch", text, tensor.bytes)


def _outputs(shown: Timeline) -> Iterator[Advice]:
    outputs = sorted((t for t in shown.tensors if t.kind == "output"), key=lambda t: -t.bytes)
    if len(outputs) < 2:
        return
    if outputs[0].bytes <= _MUCH * _all(shown) and shown.output_bytes > shown.peak_bytes:
        text = (
            f"{len(outputs)} outputs take {size(shown.output_bytes)} besides, "
            f"{short(outputs[0].name)} {size(outputs[0].bytes)} as the largest"
        )
        yield Advice("output", text, shown.output_bytes)
    for tensor in outputs:
        if tensor.bytes > _MUCH * _all(shown):
            text = (
                f"the output {short(tensor.name)} takes {size(tensor.bytes)} besides: "
                "a model without it does not, if nobody needs it"
            )
            yield Advice("output", text, tensor.bytes)


def _gaps(shown: Timeline) -> Iterator[Advice]:
    saved = shown.peak_bytes - shown.lower_bound
    if saved > _SOME * shown.lower_bound:
        text = f"{size(saved)} of the peak are gaps between tensors: --effort 3 looks for fewer"
        yield Advice("gaps", text, saved)
