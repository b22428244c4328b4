"""A quantized model, with the methods of onnxruntime's ONNXModel that follow quantization."""

from __future__ import annotations

import io
import os
from typing import Any

from sardonyx.load.model import Model
from sardonyx.quantization.document import read_document, save_document
from sardonyx.save import SaveOptions, save, serialized


class QuantizedModel:
    """A model whose weights are written, or computed, when it is saved.

    `graph_model` is the model of Sardonyx, which a session takes. `model` is a ModelProto, made
    when it is first read; from then on it is what is saved, as programs edit it.
    """

    def __init__(self, graph_model: Model) -> None:
        self.graph_model = graph_model
        self._proto: Any = None

    @property
    def model(self) -> Any:
        """The model as a ModelProto, of at most 2 GB."""
        if self._proto is None:
            import onnx

            data = io.BytesIO()
            serialized(self.graph_model, None).write(data)
            self._proto = onnx.ModelProto.FromString(data.getvalue())
        return self._proto

    def save_model_to_file(self, output_path: Any, use_external_data_format: bool = False) -> None:
        """Write the model; with external data, weights are in a file beside it, named .data."""
        path = os.fspath(output_path)
        data_file = f"{os.path.basename(path)}.data" if use_external_data_format else None
        if self._proto is None:
            save(self.graph_model, SaveOptions(path, data_file))
            return
        document = read_document(self._proto)
        save_document(document, path, external=data_file is not None, data_file=data_file)

    def graph(self) -> Any:
        """Return the GraphProto."""
        return self.model.graph

    def nodes(self) -> Any:
        """Return the nodes of the GraphProto."""
        return self.model.graph.node

    def initializer(self) -> Any:
        """Return the initializers of the GraphProto."""
        return self.model.graph.initializer

    def get_initializer(self, name: str) -> Any:
        """Return the initializer of a name, or None."""
        return next((t for t in self.model.graph.initializer if t.name == name), None)

    def opset_import(self) -> Any:
        """Return the opsets of the ModelProto."""
        return self.model.opset_import

    def ir_version(self) -> Any:
        """Return the IR version of the ModelProto."""
        return self.model.ir_version
