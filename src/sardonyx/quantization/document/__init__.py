"""An ONNX model as its file has it, for tools that edit models and save all else unchanged.

Unlike a `Graph`, a document keeps the opset, node order, names, unknown ops, functions and every
field that the tool does not touch. Weights stay references: reading a document reads none of them.
"""

from sardonyx.quantization.document.model import (
    AttributeDoc,
    GraphDoc,
    ModelDoc,
    NodeDoc,
    ValueDoc,
    attribute,
)
from sardonyx.quantization.document.read import read_document
from sardonyx.quantization.document.write import document_bytes, save_document

__all__ = [
    "AttributeDoc",
    "GraphDoc",
    "ModelDoc",
    "NodeDoc",
    "ValueDoc",
    "attribute",
    "document_bytes",
    "read_document",
    "save_document",
]
