"""Raises the opset of a document where the types of quantization need a newer one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.errors import InvalidArgument
from sardonyx.load import load
from sardonyx.load.source import read_model
from sardonyx.quantization.base_quantizer import logger
from sardonyx.quantization.document import ModelDoc, document_bytes, read_document
from sardonyx.quantization.document.session import References
from sardonyx.quantization.quant_types import FLOAT8E4M3FN, INT16, UINT16, QuantType, type_number
from sardonyx.save import serialized

_IR: Final = ((25, 13), (24, 12), (23, 11), (21, 10), (19, 9), (15, 8))  # by opset, newest first


def needed_opset(
    opset: int,
    weight_type: QuantType | int,
    activation_type: QuantType | int | None = None,
    overrides: Mapping[str, Any] | None = None,
    block_size: int = 0,
) -> int:
    """Return the opset that a model of an opset must have to be quantized so."""
    types = {type_number(weight_type)}
    if activation_type is not None:
        types.add(type_number(activation_type))
    needed, reason = opset, ""
    if block_size > 0:
        needed, reason = 21, "quantization in blocks"
    elif type_number(weight_type) == FLOAT8E4M3FN:
        needed, reason = 19, "quantization to float 8"
    elif types & {INT16, UINT16} or _has_16_bits(overrides or {}):
        needed, reason = 21, "quantization to 16 bits"
    elif opset < 10:
        needed, reason = 11, "quantization"
    if needed <= opset:
        return opset
    logger.warning(
        "the model has opset %d, and %s needs opset %d: it is converted", opset, reason, needed
    )
    return needed


def _has_16_bits(overrides: Mapping[str, Any]) -> bool:
    wide = (QuantType.QInt16, QuantType.QUInt16)
    try:
        entries = [o for group in overrides.values() for o in group]
        types = [e.get("quant_type") for e in entries]
        types += [(e.get("convert") or {}).get("quant_type") for e in entries]
    except (AttributeError, TypeError):
        return False  # the quantizer says what is wrong with the overrides
    return any(t in wide for t in types)


def converted(document: ModelDoc, opset: int) -> ModelDoc:
    """Return the model in a newer opset of ONNX; constants are shared."""
    if opset <= document.opset:
        return document
    if document.functions:
        raise InvalidArgument(
            f"the model has opset {document.opset} and functions, and quantization needs opset "
            f"{opset}",
            hint="export it with this opset",
        )
    references = References()
    data = document_bytes(document, references)
    model = load(read_model(data, document.folder, references.buffers))
    references = References()
    data = serialized(model, references).joined()
    result = read_document(read_model(data, None, references.buffers))
    opset = max(opset, result.opset)  # nodes are written in the form of the newest opsets
    result.opsets = {**document.opsets, **result.opsets, "": opset}
    ir = next((version for since, version in _IR if opset >= since), 7)
    result.ir_version = max(document.ir_version, ir)
    result.producer, result.folder = document.producer, document.folder
    return result
