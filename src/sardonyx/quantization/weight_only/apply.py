"""Quantizes the weights of a loaded model as a configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from sardonyx.base.log import logger
from sardonyx.base.records import frozen, replace
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst, Const
from sardonyx.graph.dtype import by_name
from sardonyx.graph.graph import Node, input_of
from sardonyx.load.model import Model
from sardonyx.ops.inference import axis_of
from sardonyx.quantization.quantized_weight import release
from sardonyx.quantization.weight_only import rounding
from sardonyx.quantization.weight_only.algorithms import ALGORITHMS, Algorithm, Quantizer
from sardonyx.quantization.weight_only.calibrated import quantize_calibrated
from sardonyx.quantization.weight_only.configs import WeightOnlyQuantConfig, samples_of
from sardonyx.quantization.weight_only.grid import Format, Grid
from sardonyx.quantization.weight_only.rewrite import (
    NameSuffixes,
    matmul_weight,
    replace_gather,
    replace_matmul,
)
from sardonyx.quantization.weight_only.stored import Codes, Spool, StoredLayout, lazy_weight

Array = np.ndarray[Any, Any]
# Fields of a format by the keys of customized_weight_config.
_PER_NODE_KEYS: Final = {"bits": "bits", "group_size": "block"}


@frozen
class Settings:
    """How weights are quantized, and which nodes."""

    config: WeightOnlyQuantConfig
    form: Format
    accuracy_level: int
    excluded: frozenset[str]
    included: frozenset[str]

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the configuration."""
        return ALGORITHMS[self.config.algorithm]

    def takes(self, node: Node) -> bool:
        """Return whether a node is to be quantized, if its op can be."""
        if node.name in self.excluded:
            logger.info("%s is excluded from quantization", node)
            return False
        return node.op.name in self.config.op_types_to_quantize or node.name in self.included

    def form_of(self, node: Node) -> Format:
        """Return the format of a node's weight: the common one, or that of the node."""
        own = (self.config.customized_weight_config or {}).get(node.name, {})
        changes = {field: own[key] for key, field in _PER_NODE_KEYS.items() if key in own}
        if "scheme" in own:
            changes["is_symmetric"] = own["scheme"] == "sym"
        form = replace(self.form, **changes) if changes else self.form
        const = matmul_weight(node)
        if const is not None and getattr(self.config, "channel_wised_quantize", False):
            return replace(form, block=const.shape[-2])
        form.check_block()
        return form


def apply(model: Model, settings: Settings) -> None:
    """Quantize weights of a model, whose graph is changed."""
    main: dict[Node, Format] = {}
    rest: list[Node] = []
    for node in list(model.graph.all_nodes()):
        if settings.takes(node):
            if node.op.name == "Gather" and settings.algorithm.quantizes_gather:
                _quantize_gather(node, settings)
            elif matmul_weight(node) is None:
                logger.info("%s has no constant weight to quantize", node)
            elif _is_calibrated(node, model, settings):
                main[node] = settings.form_of(node)
            else:
                rest.append(node)
    if main:
        _calibrate(model, main, settings)
    shared: dict[tuple[int, Format], list[Const]] = {}
    for node in rest:
        _round(node, settings, shared)
    model.graph.sort()


def _is_calibrated(node: Node, model: Model, settings: Settings) -> bool:
    """Return whether samples reach a node: those in bodies of If and Loop are rounded without."""
    is_outside = node.graph is model.graph and not input_of(node, 0).is_const
    return is_outside and settings.algorithm.method is not None


def _calibrate(model: Model, nodes: Mapping[Node, Format], settings: Settings) -> None:
    config: Any = settings.config
    readers: dict[str, int] = {}  # how many nodes have quantized a weight, each for itself

    def store(node: Node, codes: Array, grid: Grid) -> None:
        layout = _layout(node, nodes[node], settings)
        scale, zero, form = grid.scale, grid.zero, nodes[node]
        weight = rounding.on_grid(codes, scale, zero, form, layout.dtype.np)
        name = input_of(node, 1).name
        count = readers[name] = readers.get(name, 0) + 1
        label = f"_{count}" if count > 1 else ""
        _replace(node, layout, spool.consts(layout, weight), settings, label)

    samples = samples_of(config.calibration_data_reader)
    with Spool() as spool:
        method = settings.algorithm.method
        assert method is not None
        quantize_calibrated(model, nodes, samples, method(config), store)


def _round(node: Node, settings: Settings, shared: dict[Any, list[Const]]) -> None:
    """Quantize a weight without samples; nodes of one weight share the result."""
    const, form = matmul_weight(node), settings.form_of(node)
    assert const is not None
    layout = _layout(node, form, settings)
    key = id(const), form
    if key not in shared:
        quantizer = settings.algorithm.quantizer(settings.config, input_of(node, 1).name)
        shared[key] = lazy_weight(layout, partial(_quantized, const, form, quantizer))
    _replace(node, layout, shared[key], settings)


def _quantized(const: Const, form: Format, quantizer: Quantizer) -> Codes:
    found = quantizer(rounding.matrix(const), form)
    release(const)
    if not np.isfinite(found.scale).all():
        raise InvalidArgument(
            "a weight has NaN or infinity, which n-bit codes do not express",
            hint="check the model, or exclude the node",
        )
    dtype = const.dtype.np
    zero = found.zero
    if zero is not None and zero.dtype != np.uint8:
        zero = zero.astype(dtype)
    return Codes(found.codes, found.scale.astype(dtype, copy=False), zero)


def _layout(node: Node, form: Format, settings: Settings) -> StoredLayout:
    const, zero = matmul_weight(node), settings.algorithm.zero
    assert const is not None
    rows, columns = const.shape[-2:]
    if zero is None:
        zero = "" if form.is_symmetric else "codes"
    is_qdq = settings.config.is_qdq
    return StoredLayout(rows, columns, form.stored_bits, form.block, zero, is_qdq, const.dtype)


def _replace(
    node: Node, layout: StoredLayout, consts: list[Const], settings: Settings, label: str = ""
) -> None:
    names = _names(layout, settings)
    codes, scales, zeros = (label + suffix for suffix in names.tensors)
    names = replace(names, tensors=(codes, scales, zeros))
    replace_matmul(node, layout, consts, names, settings.accuracy_level)


def _names(layout: StoredLayout, settings: Settings) -> NameSuffixes:
    """Return the suffixes that onnxruntime's tools give."""
    q = f"_Q{layout.bits}"
    if layout.is_qdq:
        tensors = (f"_DQ{q}", "_DQ_scales", "_DQ_zero_points")
        return NameSuffixes(f"_DQ{q}", tensors, f"_matmul{q}")
    if settings.algorithm.is_neural_compressor:
        return NameSuffixes(q, (f"{q}G{layout.block}", "_scale", "_zp"))
    return NameSuffixes(q, (q, "_scales", "_zero_points"))


def _quantize_gather(node: Node, settings: Settings) -> None:
    """Quantize the table of a Gather to 4 bits."""
    const, form = input_of(node, 0).const, settings.form
    if const is None or const.dtype.name not in ("f32", "f16"):
        logger.info("%s has no constant table of float32 or float16", node)
        return
    if form.bits != 4 or settings.config.is_qdq:
        raise InvalidArgument(
            f"the table of {node} is quantized to 4 bits as GatherBlockQuantized only",
            hint="use bits=4 and QuantFormat.QOperator, or leave out Gather",
        )
    form.check_block()
    axis = axis_of(settings.config.quant_axes.get("Gather", 1), len(const.shape), "quant_axes")
    arrays = rounding.table(const.view(), axis, form.block, form.is_symmetric)
    integers = by_name("i4" if form.is_symmetric else "u4").np
    kinds = (integers, const.dtype.np, integers)
    consts = [ArrayConst(a.astype(k)) for a, k in zip(arrays, kinds, strict=False)]
    replace_gather(node, axis, form.block, consts, ("_Q4", "_scales", "_zero_points"))
