"""Sessions over documents: weights are read where they are, not copied into the session's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.graph.const import Const, SourceConst
from sardonyx.ort.enums import GraphOptimizationLevel
from sardonyx.ort.options import SessionOptions
from sardonyx.quantization.document.model import ModelDoc
from sardonyx.quantization.document.write import MIN_EXTERNAL, document_bytes
from sardonyx.save.tensor import stored_bytes
from sardonyx.session import InferenceSession


class References:
    """External tensors that are the buffers of a document's sources."""

    def __init__(self) -> None:
        self.buffers: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def entries(self, const: Const, name: str) -> dict[str, object] | None:
        """Return where the bytes of a tensor are; None if they are copied into the model."""
        size = stored_bytes(const)
        if size < MIN_EXTERNAL or not isinstance(const, SourceConst):
            return None
        source = const.source
        location = self._names.setdefault(id(source), f"source{len(self._names)}")
        self.buffers[location] = source.data
        return {"location": location, "offset": const.offset, "length": size}


def open_session(
    document: ModelDoc,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    options: SessionOptions | None = None,
) -> InferenceSession:
    """Return a session that runs a document, by default without graph optimizations."""
    references = References()
    data = document_bytes(document, references)
    if options is None:
        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    names = list(references.buffers)
    buffers = [references.buffers[name] for name in names]
    options.add_external_initializers_from_files_in_memory(
        names, buffers, [b.nbytes for b in buffers]
    )
    return InferenceSession(data, options, providers=list(providers))
