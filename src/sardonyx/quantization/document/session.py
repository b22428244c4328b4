"""Sessions over documents: weights are read where they are, not copied into the session's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sardonyx.graph.const import Const, SourceConst
from sardonyx.graph.fact import Fact
from sardonyx.ort.enums import GraphOptimizationLevel
from sardonyx.ort.options import SessionOptions
from sardonyx.quantization.document.model import GraphDoc, ModelDoc
from sardonyx.quantization.document.read import value_of
from sardonyx.quantization.document.write import MIN_EXTERNAL, document_bytes
from sardonyx.save.tensor import stored_bytes
from sardonyx.save.types import value_info
from sardonyx.session import InferenceSession

KEPT_BYTES: Final = 1 << 28  # of weights that tools keep in memory; of more they keep none
_PACKING: Final = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose"))  # their input 1
_CPU: Final = "CPUExecutionProvider"


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


class UnpackedSession:
    """A session that is fed its large weights: a kernel packs one while it multiplies by it.

    A session of constants packs all of them into memory when it is opened. This one reads them
    where they are, with the same results; short runs take up to twice as long.
    """

    def __init__(self, session: InferenceSession, weights: Mapping[str, Any]) -> None:
        self._session = session
        self._weights = weights

    def run(self, output_names: Any, input_feed: Mapping[str, Any], *options: Any) -> Any:
        """Run the model; weights are no part of the feed."""
        return self._session.run(output_names, {**input_feed, **self._weights}, *options)

    def get_inputs(self) -> Any:
        """Return the inputs of the model, without weights."""
        return [each for each in self._session.get_inputs() if each.name not in self._weights]

    def __getattr__(self, name: str) -> Any:
        """Return what else a session has."""
        return getattr(self._session, name)


def open_measuring(document: ModelDoc, providers: Sequence[Any] = (_CPU,)) -> Any:
    """Return a session that runs a document without graph optimizations, to see its values.

    More than 256 MB of weights are not packed.
    """
    weights = _unpacked(document.graph) if list(providers) == [_CPU] else {}
    if sum(map(stored_bytes, weights.values())) <= KEPT_BYTES:
        return open_session(document, providers)
    measured = document.copy()
    for name, const in weights.items():
        del measured.graph.initializers[name]
        declared = value_info(name, Fact(const.dtype, None), const.shape).joined()
        measured.graph.inputs.append(value_of(declared))
    arrays = {name: const.view() for name, const in weights.items()}
    return UnpackedSession(open_session(measured, providers), arrays)


def _unpacked(graph: GraphDoc) -> dict[str, Const]:
    """Return the constants of files that kernels multiply by, and nothing else reads."""
    kept = {value.name for value in (*graph.inputs, *graph.outputs)} | set(graph.body_reads())
    found: dict[str, Const] = {}
    for node in graph.nodes:
        name, is_packing = node.input(1), node.op_type in _PACKING and not node.domain
        const = graph.initializers.get(name)
        if is_packing and isinstance(const, SourceConst) and const.dtype.name in ("f32", "f16"):
            found[name] = const
        kept.update(n for n in node.inputs if not is_packing or n != name)
    return {name: const for name, const in found.items() if name not in kept}


def open_session(
    document: ModelDoc,
    providers: Sequence[Any] = (_CPU,),
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
