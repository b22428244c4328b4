"""Lowering of attention with a cache: append to the cache, then attend to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from sardonyx.errors import SardonyxError
from sardonyx.graph.build import Builder
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.log import logger
from sardonyx.ops.declare import INTERNAL, MICROSOFT
from sardonyx.ops.microsoft.group_query import Inputs
from sardonyx.passes.driver import drop
from sardonyx.passes.rule import NoMatch, need, ranked

HEADS_FIRST: Final = (0, 2, 1, 3)  # [batch, rows, heads, head] as [batch, heads, rows, head]


class Caches:
    """What the nodes of one graph share."""

    def __init__(self) -> None:
        self.spans: dict[tuple[Any, ...], Value] = {}


def lower_caches(graph: Graph) -> None:
    """Makes the internal ops of each attention in a graph and the bodies in it."""
    caches = Caches()
    for node in list(graph.nodes):
        lower = _LOWERINGS.get(node.op.key)
        if lower is None:
            continue
        builder, n_guards = Builder(graph, graph.scope), len(graph.scope.found)
        try:
            made = lower(builder, node, caches)
        except (NoMatch, SardonyxError) as reason:
            for other in reversed(builder.made):
                graph.remove(other)
            del graph.scope.found[n_guards:]
            logger.debug("no cache at %s: %s", node, reason)
            continue
        for other in builder.made:
            other.name = node.name
        for old, new in zip(node.outputs, made, strict=False):
            if new is not None and old.is_used:
                new.name, old.name = old.name, ""
                graph.replace(old, new)
        drop(graph, [node])
    for node in list(graph.nodes):
        for _, body in node.subgraphs:
            lower_caches(body)


def given(node: Node, count: int) -> tuple[Value | None, ...]:
    """The inputs of a node, None for those left out at the end."""
    return (*node.inputs, *[None] * (count - len(node.inputs)))


def parts_of(b: Builder, x: Value, parts: int) -> Value:
    """[batch, rows, parts * size] as [batch, rows, parts, size]."""
    hidden = x.tensor.dims[2]
    need(isinstance(hidden, int), "the size of a head is not known")
    assert isinstance(hidden, int)
    made: Value = b.Reshape(x, b.ints(0, 0, parts, hidden // parts))
    return made


def wide_value(b: Builder, x: Value | None) -> Value | None:
    """A mask or a sink in the type that scores are computed in."""
    if x is None or x.tensor.dtype is F32:
        return x
    made: Value = b.Cast(x, to=F32.onnx)
    return made


def joined(b: Builder, y: Value, width: int) -> Value:
    """[batch, rows, heads, size] with the heads side by side."""
    made: Value = b.Reshape(y, b.ints(0, 0, width))
    return made


def group_query(b: Builder, node: Node, caches: Caches) -> tuple[Value | None, ...]:
    x, attrs = Inputs(*given(node, 16)), node.attrs
    ranked(*[v for v in node.inputs if v is not None])
    need(len(node.outputs) < 4 or not node.outputs[3].is_used, "shows its scores")
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    q, k, v = (b.Transpose(part, perm=HEADS_FIRST) for part in _split(b, x, heads, shared))
    head = q.tensor.dims[3]
    bias = wide_value(b, x.bias)
    key = (x.seqlens, x.total, q.tensor.dims[0], q.tensor.dims[2])
    if key not in caches.spans:
        caches.spans[key] = b.Spans(x.seqlens, x.total, q, domain=INTERNAL)
    spans = caches.spans[key]
    turned = (q, x.cos, x.sin, x.positions) if attrs["do_rotary"] else ()
    interleaved = attrs["rotary_interleaved"]
    append = b.node(
        "Append",
        *(k, v, x.past_key, x.past_value, spans, x.total, *turned),
        outputs=3 if turned else 2,
        domain=INTERNAL,
        interleaved=interleaved,
    )
    for mine, theirs in zip(append.outputs[:2], node.outputs[1:3], strict=False):
        mine.fact = theirs.fact
    if bias is not None:
        need(bias.tensor.dims[3] == append.outputs[0].tensor.dims[2], "biases of fewer keys")
    window = attrs["local_window_size"]
    y = b.Attention(
        append.outputs[2] if turned else q,
        *append.outputs[:2],
        bias,
        spans,
        wide_value(b, x.sink),
        domain=INTERNAL,
        scale=attrs["scale"] or 1 / math.sqrt(head),
        rows_first=1,
        group=heads // shared,
        before=window - 1 if window > 0 else -1,
        behind=0 if attrs["causal"] else -1,
        softcap=max(attrs["softcap"], 0.0),
        smooth=int(attrs["smooth_softmax"] == 1),
    )
    return joined(b, y, heads * head), *append.outputs[:2]


def _split(b: Builder, x: Inputs, heads: int, shared: int) -> tuple[Value, ...]:
    """Query, key and value as [batch, rows, heads, head]."""
    if x.key is not None:
        both = parts_of(b, x.key, shared), parts_of(b, x.value, shared)
        return parts_of(b, x.query, heads), *both
    whole = parts_of(b, x.query, heads + 2 * shared)
    parts: tuple[Value, ...] = b.Split(whole, b.ints(heads, shared, shared), axis=2, outputs=3)
    return parts


_Lowering = Callable[[Builder, Node, Caches], tuple[Value | None, ...]]
_LOWERINGS: Final[dict[tuple[str, str], _Lowering]] = {
    (MICROSOFT, "GroupQueryAttention"): group_query,
}
