"""Quantization schemes for 8 bits, and the models that they produce."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.quantization.bias_correction import corrected_biases, input_means
from sardonyx.quantization.document import ModelDoc, read_document, save_document
from sardonyx.quantization.document.types import value_types
from sardonyx.quantization.onnx_quantizer import ONNXQuantizer
from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.quant_types import QuantizationMode, QuantType
from sardonyx.quantization.search.journal import Journal
from sardonyx.quantization.search.layers import (
    ACTIVATIONS,
    HEAVY,
    LIGHT,
    TABLE,
    Layer,
    layers_of,
    name_nodes,
)
from sardonyx.quantization.search.ranges import METHODS, calibrated
from sardonyx.quantization.search.samples import Part
from sardonyx.quantization.smooth_quant import smooth
from sardonyx.quantization.tensors_data import TensorsData, load_tensors_data, save_tensors_data

# Coverage: the activations that are in 8 bits besides the weights of the layers.
COVERAGES: Final = {
    "chain": "layers and the light ops between them",
    "layers": "inputs and outputs of layers",
    "inputs": "inputs of layers; their outputs are floats",
    "dynamic": "inputs of layers, with scales of each run",
}
_SMOOTHED_SHARE: Final = 0.25  # of the layers: SmoothQuant is not tried if fewer can be smoothed


@frozen
class Scheme:
    """How the quantized layers of a model are quantized."""

    coverage: str = "chain"
    ranges: str = "minmax"
    is_symmetric: bool = False  # activations: int8 with zero point 0, else uint8
    is_per_channel: bool = True
    alpha: float = 0.0  # of SmoothQuant; 0: none
    corrects_bias: bool = False

    @property
    def is_static(self) -> bool:
        """Whether scales of activations are constant."""
        return self.coverage != "dynamic"

    def __str__(self) -> str:
        weights = "per channel" if self.is_per_channel else "per tensor"
        parts = [self.coverage, weights]
        if self.is_static:
            parts += ["int8 symmetric" if self.is_symmetric else "uint8", self.ranges]
        if self.alpha:
            parts.append(f"SmoothQuant {self.alpha:g}")
        if self.corrects_bias:
            parts.append("corrected biases")
        return ", ".join(parts)


class Quantizable:
    """A prepared model, its layers, and the calibration results of it and of its smoothed forms."""

    def __init__(self, path: str, calibrating: Part, journal: Journal) -> None:
        self.path = path
        self._journal = journal
        self._calibrating = calibrating
        document = read_document(path)
        name_nodes(document)
        types = {n: kind.dtype.onnx for n, kind in value_types(document).items()}
        self.layers: list[Layer] = layers_of(document, types)
        self._documents: dict[float, ModelDoc] = {0.0: document}
        self._ranges: dict[float, dict[str, TensorsData]] = {}
        self._means: dict[float, dict[str, Any]] = {}

    @property
    def document(self) -> ModelDoc:
        """The prepared model; read-only."""
        return self._documents[0.0]

    @property
    def op_types(self) -> set[str]:
        """The ops of the layers."""
        return {layer.op for layer in self.layers}

    def quantized(self, scheme: Scheme, layers: Sequence[Layer]) -> ModelDoc:
        """Return the model with some of its layers quantized."""
        if not scheme.is_static:
            return self._dynamic(scheme, layers)
        document = self._quantized(scheme, layers, self._smoothed(scheme.alpha).copy())
        if not scheme.corrects_bias:
            return document
        base = self._smoothed(scheme.alpha).copy()
        names_of_layers = {layer.name for layer in layers}
        corrected_biases(base, document, self._means_of(scheme.alpha), names_of_layers)
        return self._quantized(scheme, layers, base)

    def _quantized(self, scheme: Scheme, layers: Sequence[Layer], document: ModelDoc) -> ModelDoc:
        outputs = HEAVY if scheme.coverage == "inputs" else ()
        activation = QuantType.QInt8 if scheme.is_symmetric else QuantType.QUInt8
        quantizer = QDQQuantizer(
            document,
            scheme.is_per_channel,
            False,
            QuantType.QInt8,
            activation,
            self._ranges_of(scheme.alpha)[scheme.ranges],
            covered(scheme.coverage, layers),
            [],
            _op_types(scheme.coverage),
            {
                "ActivationSymmetric": scheme.is_symmetric,
                "OpTypesToExcludeOutputQuantization": list(outputs),
            },
        )
        quantizer.quantize_document()
        return document

    def _dynamic(self, scheme: Scheme, layers: Sequence[Layer]) -> ModelDoc:
        document = self._smoothed(scheme.alpha).copy()
        # The quantizer makes a MatMul and an Add of a Gemm.
        chosen = [layer.name + ("_MatMul" if layer.op == "Gemm" else "") for layer in layers]
        ONNXQuantizer(
            document,
            scheme.is_per_channel,
            False,
            QuantizationMode.IntegerOps,
            False,
            QuantType.QInt8,
            QuantType.QUInt8,
            None,
            chosen,
            [],
            ["MatMul", "Conv", "Gather"],
            {"MatMulConstBOnly": True},
        ).quantize_document()
        return document

    def _smoothed(self, alpha: float) -> ModelDoc:
        """Return the smoothed model, whose weights are in a file, as those of the original are."""
        if alpha not in self._documents:
            path = self._journal.path(f"smoothed.{alpha:g}.onnx")
            if not os.path.exists(path):
                document = self.document.copy()
                smooth(document, self._calibrating.feeds(), alpha)
                save_document(document, path)
            self._documents[alpha] = read_document(path)
        return self._documents[alpha]

    def _ranges_of(self, alpha: float) -> dict[str, TensorsData]:
        if alpha in self._ranges:
            return self._ranges[alpha]
        paths = {m: self._journal.path(f"ranges.{alpha:g}.{m.split()[0]}") for m in METHODS}
        if all(map(os.path.exists, paths.values())):
            self._ranges[alpha] = {m: load_tensors_data(path) for m, path in paths.items()}
            return self._ranges[alpha]
        found = calibrated(self._smoothed(alpha), _op_types("chain"), self._calibrating.feeds())
        for method, path in paths.items():
            save_tensors_data(found[method], path)
        self._ranges[alpha] = found
        return found

    def _means_of(self, alpha: float) -> dict[str, Any]:
        """Return the means of the activations that are multiplied by constant weights."""
        if alpha not in self._means:
            document = self._smoothed(alpha)
            heavy = [node for node in document.graph.nodes if node.op_type in HEAVY]
            is_constant = document.graph.initializers.__contains__
            names = {node.inputs[0] for node in heavy if is_constant(node.inputs[1])}
            self._means[alpha] = input_means(document, names, self._calibrating.feeds())
        return self._means[alpha]

    def can_smooth(self) -> bool:
        """Return whether enough layers multiply by a constant matrix, as SmoothQuant needs."""
        matrices = [x for x in self.layers if x.op in ("MatMul", "Gemm") and x.weight_count]
        return len(matrices) >= _SMOOTHED_SHARE * len(self.layers)


def covered(coverage: str, layers: Collection[Layer]) -> list[str]:
    """Return the names of the nodes of some layers that a coverage quantizes."""
    if coverage == "inputs":
        return [layer.name for layer in layers]
    return [name for layer in layers for name in layer.nodes]


def _op_types(coverage: str) -> list[str]:
    light = {"chain": LIGHT, "layers": ACTIVATIONS}.get(coverage, ())
    return [*HEAVY, TABLE, *light]
