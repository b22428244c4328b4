"""Loads an ONNX model from a file or buffer into a graph; weights stay references to its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx._native import DecodeError, ModelRecord, ValueInfoRecord, decode
from sardonyx.base.records import field, frozen, replace
from sardonyx.errors import InvalidArgument, InvalidGraph, InvalidProtobuf, NotImplemented
from sardonyx.load.build import NEWEST as NEWEST
from sardonyx.load.build import Context, ExpansionLimits, GraphBuilder, NameScope
from sardonyx.load.model import Declared, Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.load.tensor import Tensors
from sardonyx.load.types import Dims, declared_dims, fact_of

OLDEST_IR: Final = 3
NEWEST_IR: Final = 14
MAX_EXPANDED: Final = 200_000  # nodes from function expansion


@frozen
class LoadOptions:
    """Options for reading a model."""

    folder: str | None = None  # with external data; None: the model's folder
    in_memory: Mapping[str, memoryview] = field(default_factory=dict)
    initializers: Mapping[str, Any] = field(default_factory=dict)  # arrays in place of the model's
    dims_by_name: dict[str, int] = field(default_factory=dict)
    dims_by_denotation: dict[str, int] = field(default_factory=dict)
    split_names: bool = False  # dims of equal names may differ
    fixes_defaults: bool = False  # inputs with a default become constants
    copies: bool = False  # read weights into memory instead of mapping their files
    is_strict: bool = False  # inferred shapes must match declared ones
    most_nodes: int = MAX_EXPANDED  # from function expansion
    most_bytes: int = 0  # total size of names and tensors of these nodes; 0: unlimited


def load(model: Any, options: LoadOptions | None = None, names: NameScope | None = None) -> Model:
    """Load a model from anything that `read_model` accepts, or from its result.

    `names`, empty, gets the values of the main graph by the names that the model gives them.
    """
    options = options or LoadOptions()
    data = model
    if not isinstance(model, ModelBytes):
        data = read_model(model, options.folder, options.in_memory, options.copies)
    if data.model is not None:
        return _copied(data.model, options)
    record = read_record(data)
    assert record.graph is not None
    opsets = _opsets(record)
    dims = Dims(options.dims_by_name, options.dims_by_denotation, options.split_names)
    tensors = Tensors(data.source, data.files, options.initializers)
    builder = GraphBuilder(
        tensors,
        record.functions,
        dims,
        constant_inputs=options.fixes_defaults or not _has_defaults(record),
        limits=ExpansionLimits(options.most_nodes, options.most_bytes),
    )
    graph = builder.graph(record.graph, Context(names or NameScope(), opsets))
    tensors.check_all_used()
    built = _model(record, graph, opsets, data.origin)
    built.has_gradient_nodes = builder.has_gradient_nodes
    return built


def read_record(data: ModelBytes) -> ModelRecord:
    """Decode a model; its graph is not None."""
    try:
        record = decode(data.source.data)
    except DecodeError as error:
        raise _misread(data, str(error)) from None
    if record.graph is None:
        raise _misread(data, "it has no graph")
    return record


def _misread(data: ModelBytes, why: str) -> InvalidProtobuf:
    from sardonyx.load.other_formats import misread

    return misread(data.source.name, memoryview(data.source.data), why)


def _has_defaults(record: ModelRecord) -> bool:
    """Return whether inputs may have defaults; before IR 4 initializers had to be inputs too."""
    return record.ir_version >= 4


def _copied(model: Model, options: LoadOptions) -> Model:
    """Return a loaded model with a copy of its graph."""
    from sardonyx.graph.copy import copied

    if options.initializers:
        raise InvalidArgument(
            f"the initializer {min(options.initializers)} cannot be replaced in a model in memory",
            hint="replace it where the model is loaded from",
        )
    return replace(model, graph=copied(model.graph, options.dims_by_name))


def _opsets(record: ModelRecord) -> dict[str, int]:
    if not OLDEST_IR <= record.ir_version <= NEWEST_IR:
        raise InvalidGraph(
            f"the model has IR version {record.ir_version}; "
            f"this version reads {OLDEST_IR} to {NEWEST_IR}",
            hint="convert it with onnx.version_converter",
        )
    opsets: dict[str, int] = {}
    for domain, version in record.opset_imports:
        domain = "" if domain == "ai.onnx" else domain
        opsets[domain] = max(version, opsets.get(domain, version))
        if version > NEWEST.get(domain, version):
            raise NotImplemented(
                f"the model uses opset {version} of {domain or 'ai.onnx'}, "
                f"and {NEWEST[domain]} is the newest supported",
                hint="export the model with an older opset",
            )
    for domain, version in opsets.items():
        if version < 1:
            raise InvalidGraph(f"the model imports opset {version} of {domain or 'ai.onnx'}")
    return opsets


def _model(record: ModelRecord, graph: Any, opsets: dict[str, int], origin: str) -> Model:
    assert record.graph is not None
    defaults: set[str] = set()
    if _has_defaults(record):
        defaults.update(t.name for t in record.graph.initializers)
        defaults.update(s.values.name for s in record.graph.sparse_initializers)
    kept = {v.name for v in graph.inputs} | defaults
    inputs = [_declared(i) for i in record.graph.inputs if i.name in kept]
    return Model(
        graph=graph,
        ir_version=record.ir_version,
        opsets=opsets,
        inputs=[d for d in inputs if d.name not in defaults],
        outputs=[_declared(o) for o in record.graph.outputs],
        overridable=[d for d in inputs if d.name in defaults],
        origin=origin,
        producer_name=record.producer_name,
        producer_version=record.producer_version,
        domain=record.domain,
        version=record.model_version,
        description=record.doc_string,
        graph_name=record.graph.name,
        graph_description=record.graph.doc_string,
        metadata=dict(record.metadata),
    )


def _declared(info: ValueInfoRecord) -> Declared:
    return Declared(info.name, fact_of(info.type), declared_dims(info.type))
