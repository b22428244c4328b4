"""Quantizes a model's weights by its activations: GPTQ and AWQ, layer by layer.

Layers are visited in the order in which they run. The activations of a layer come from the layers
before it as they are quantized, so each compensates for the errors of those before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from sardonyx.base.log import logger
from sardonyx.base.progress import track
from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.load.model import Model
from sardonyx.quantization.quantized_weight import release
from sardonyx.quantization.weight_only.gptq import Rounding, compensated, curvature
from sardonyx.quantization.weight_only.grid import Format, Grid, searched_grid
from sardonyx.quantization.weight_only.rounding import column_tiles, matrix
from sardonyx.quantization.weight_only.streams import ActivationStream

Array = np.ndarray[Any, Any]
Store = Callable[[Node, Array, Grid], None]  # a node, codes [K, N] and grid of its weight

# Normalizations whose scale, input 1, can take a factor per channel, and the input of their bias.
_NORMS: Final[dict[str, int | None]] = {
    "LayerNormalization": 2,
    "RMSNormalization": None,
    "SimplifiedLayerNormalization": None,
    "SkipLayerNormalization": 3,
    "SkipSimplifiedLayerNormalization": None,
}
_SKIPS: Final = frozenset(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"))
_EXPONENTS: Final = tuple(np.linspace(0, 1, 11)[1:].tolist())
_SEARCHED: Final = 256  # columns that exponents are compared on


@frozen
class Method:
    """How activations are used."""

    compensates: Rounding | None  # None: weights are rounded independently
    scales: bool  # scale salient channels before rounding (AWQ)


def quantize_calibrated(
    model: Model,
    nodes: Mapping[Node, Format],
    samples: Iterable[Mapping[str, Any]],
    method: Method,
    store: Store,
) -> None:
    """Quantize the weights of MatMul nodes of the main graph; `store` replaces each node."""
    groups: dict[Value, list[Node]] = {}
    for node in model.graph.sorted_nodes():
        if node in nodes:
            groups.setdefault(input_of(node, 0), []).append(node)
    stream = ActivationStream(model, samples)
    done = 0
    with track("quantizing weights") as progress:
        for group in groups.values():
            x = input_of(group[0], 0)  # another value than before, where a layer above made it
            hessian = _hessian(stream.advance(x))
            factors = _factors(x, group, nodes, hessian) if method.scales else None
            if factors is not None:
                _fold(x, factors)
                stream.scale(x, 1 / factors)
                hessian /= np.outer(factors, factors)
            if method.compensates is not None:
                curve = curvature(hessian, method.compensates)
                round_ = partial(compensated, curve=curve, rounding=method.compensates)
            else:
                round_ = partial(_clipped, importance=np.einsum("ii->i", hessian).copy())
            del hessian
            _quantize(group, nodes, factors, round_, store)
            done += len(group)
            progress.update(done, len(nodes), f"{done} of {len(nodes)} layers")


def _hessian(arrays: Sequence[Array]) -> Array:
    """Return X^T X of all rows of some activations, summed in float64."""
    size = arrays[0].shape[-1]
    total = np.zeros((size, size))
    for array in arrays:
        rows = np.ascontiguousarray(array, np.float32).reshape(-1, size)
        total += rows.T @ rows
    if not np.isfinite(total).all():
        raise InvalidArgument(
            "activations of the calibration samples are not finite",
            hint="check the samples, or exclude the node from quantization",
        )
    return total


def _quantize(
    group: Sequence[Node],
    nodes: Mapping[Node, Format],
    factors: Array | None,
    round_: Callable[[Array, Format], tuple[Array, Grid]],
    store: Store,
) -> None:
    """Quantize the weights that multiply one activation."""
    for node in group:
        logger.info("quantizing the weight of %s", node)
        const = input_of(node, 1).const
        assert const is not None
        weight = matrix(const).astype(np.float32, copy=False)
        if factors is not None:
            weight = weight * factors[:, None].astype(np.float32)
        codes, grid = round_(weight, nodes[node])
        store(node, codes, grid)
        release(const)


def _clipped(weight: Array, form: Format, importance: Array) -> tuple[Array, Grid]:
    """Round each weight to a grid whose range is clipped for the least error of activations."""
    counts = importance.astype(np.float32)
    parts = [(p, searched_grid(p, form, counts)) for p in column_tiles(weight)]
    codes = np.concatenate([grid.codes(part, form) for part, grid in parts], 1)
    scale, zero = (np.concatenate([getattr(g, n) for _, g in parts], 1) for n in ("scale", "zero"))
    return codes, Grid(scale, zero)


def _factors(
    x: Value, group: Sequence[Node], nodes: Mapping[Node, Format], hessian: Array
) -> Array | None:
    """Return the factors of an activation's channels that minimize the quantization error.

    They are a power of the channels' magnitudes (AWQ, Lin et al., arXiv 2306.00978). None if the
    node that makes the activation cannot take them, or if no power is better than 0.
    """
    if not _can_fold(x, group):
        return None
    size = np.sqrt(np.maximum(np.einsum("ii->i", hessian), 1e-12))
    best_error, best = _quantization_error(group, nodes, hessian, np.ones_like(size)), None
    for exponent in _EXPONENTS:
        factors = size**exponent
        factors /= np.sqrt(factors.max() * factors.min())
        error = _quantization_error(group, nodes, hessian, factors)
        if error < best_error:
            best_error, best = error, factors.astype(np.float32)
    return best


def _quantization_error(
    group: Sequence[Node], nodes: Mapping[Node, Format], hessian: Array, factors: Array
) -> float:
    """Return the squared error of the products of a group, on a part of their columns."""
    total = 0.0
    column, importance = factors[:, None].astype(np.float32), np.einsum("ii->i", hessian)
    for node in group:
        const = input_of(node, 1).const
        assert const is not None
        every = matrix(const)
        step = max(1, every.shape[1] // _SEARCHED)
        weight, form = np.ascontiguousarray(every[:, ::step], np.float32), nodes[node]
        codes, grid = _clipped(weight * column, form, importance / factors**2)
        error = grid.values(codes, form) / column - weight
        total += step * float(np.einsum("kn,kn->", error, hessian @ error))
    return total


def _can_fold(x: Value, group: Sequence[Node]) -> bool:
    """Return whether a normalization makes an activation that only the group reads."""
    norm = x.node
    if norm is None or norm.op.name not in _NORMS or x.index or x.n_exits:
        return False
    if {node for node, _ in x.uses} != set(group) or len(x.uses) != len(group):
        return False
    return all(value.is_const and value.const is not None for value in _folded(norm).values())


def _folded(norm: Node) -> dict[int, Value]:
    """Return the inputs of a normalization that channels' factors divide, by slot."""
    first = 2 if norm.op.name in _SKIPS else 1
    found = {first: input_of(norm, first)}
    bias = _NORMS[norm.op.name]
    if bias is not None and (value := optional_input(norm, bias)) is not None:
        found[bias] = value
    return found


def _fold(x: Value, factors: Array) -> None:
    """Divide the scale and the bias of the normalization that makes an activation."""
    norm = x.node
    assert norm is not None
    for slot, value in _folded(norm).items():
        const = value.const
        assert const is not None
        divided = (const.read().astype(np.float32) / factors).astype(const.dtype.np)
        norm.graph.set_input(norm, slot, constant(ArrayConst(divided), f"{value.name}_divided"))
