"""Load: from a file, bytes or buffers to a graph whose weights stay references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx._native import DecodeError, ModelRecord, ValueInfoRecord, decode
from sardonyx.base.records import field, frozen, replace
from sardonyx.errors import InvalidArgument, InvalidGraph, InvalidProtobuf, NotImplemented
from sardonyx.load.build import Call, GraphBuilder, Limits
from sardonyx.load.model import Declared, Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.load.tensor import Tensors
from sardonyx.load.types import Dims, declared_dims, fact_of

OLDEST_IR: Final = 3
NEWEST_IR: Final = 14
MAX_EXPANDED: Final = 200_000  # nodes that functions may become
NEWEST: Final = {"": 28, "ai.onnx.ml": 5}  # newer opsets may mean something else


@frozen
class LoadOptions:
    """What a user may say of how a model is read."""

    folder: str | None = None  # of external data, instead of the model's own
    in_memory: Mapping[str, memoryview] = field(default_factory=dict)
    initializers: Mapping[str, Any] = field(default_factory=dict)  # arrays, instead of the model's
    dims_by_name: dict[str, int] = field(default_factory=dict)
    dims_by_denotation: dict[str, int] = field(default_factory=dict)
    split_names: bool = False  # dims of equal names need not be equal
    fixes_defaults: bool = False  # inputs that have a default are constants: nobody feeds them
    copies: bool = False  # reads weights into memory rather than mapping their files
    is_strict: bool = False  # shapes that contradict what is declared are errors
    most_nodes: int = MAX_EXPANDED  # that functions may become
    most_bytes: int = 0  # of attributes in these; 0: any number


def load(model: Any, options: LoadOptions | None = None) -> Model:
    """A model from whatever `read_model` takes, or from what it made."""
    options = options or LoadOptions()
    given = model
    if not isinstance(model, ModelBytes):
        given = read_model(model, options.folder, options.in_memory, options.copies)
    if given.model is not None:
        return _once_more(given.model, options)
    record = read_record(given)
    assert record.graph is not None
    opsets = _opsets(record)
    dims = Dims(options.dims_by_name, options.dims_by_denotation, options.split_names)
    tensors = Tensors(given.source, given.files, options.initializers)
    builder = GraphBuilder(
        tensors,
        record.functions,
        dims,
        constant_inputs=options.fixes_defaults or not _has_defaults(record),
        limits=Limits(options.most_nodes, options.most_bytes),
    )
    graph = builder.graph(record.graph, Call(opsets))
    tensors.check_all_used()
    built = _model(record, graph, opsets, given.origin)
    built.has_gradient_nodes = builder.asks_for_gradients
    return built


def read_record(given: ModelBytes) -> ModelRecord:
    """What a file says, decoded; there is a graph in it."""
    try:
        record = decode(given.source.data)
    except DecodeError as error:
        _refuse_other_files(given)
        raise InvalidProtobuf(f"{given.source.name} is not an ONNX model: {error}") from None
    if record.graph is None:
        _refuse_other_files(given)
        raise InvalidProtobuf(f"{given.source.name} is not an ONNX model: it has no graph")
    return record


def _refuse_other_files(given: ModelBytes) -> None:
    """Says what a file is, if it is one of those that people take for a model."""
    head = bytes(given.source.data[:64])
    name = given.source.name
    if head[4:8] == b"ORTM":
        raise NotImplemented(
            f"{name} is in the .ort format, which holds the inside of one version of onnxruntime",
            hint="use the .onnx model that it was converted from",
        )
    if head.startswith(b"version https://git-lfs"):
        raise InvalidProtobuf(
            f"{name} is a pointer of git-lfs, not the model itself", hint="run git lfs pull"
        )
    if head.startswith(b"PK\x03\x04"):
        raise InvalidProtobuf(
            f"{name} is a zip archive", hint="unpack it, and load the model in it"
        )


def _has_defaults(record: ModelRecord) -> bool:
    """Before IR 4 every initializer had to be listed as an input, and was a constant anyway."""
    return record.ir_version >= 4


def _once_more(model: Model, options: LoadOptions) -> Model:
    """A model that is there already, with a graph of its own."""
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
            f"the model has IR version {record.ir_version}, "
            f"and {OLDEST_IR} to {NEWEST_IR} are known",
            hint="convert it with onnx.version_converter",
        )
    opsets: dict[str, int] = {}
    for domain, version in record.opset_imports:
        domain = "" if domain == "ai.onnx" else domain
        opsets[domain] = max(version, opsets.get(domain, 0))
        if version < 1:
            raise InvalidGraph(f"the model imports opset {version} of {domain or 'ai.onnx'}")
        if version > NEWEST.get(domain, version):
            raise NotImplemented(
                f"the model uses opset {version} of {domain or 'ai.onnx'}, "
                f"and {NEWEST[domain]} is the newest supported",
                hint="export the model with an older opset",
            )
    return opsets


def _model(record: ModelRecord, graph: Any, opsets: dict[str, int], origin: str) -> Model:
    assert record.graph is not None
    given = record.graph
    stored = (
        *(t.name for t in given.initializers),
        *(s.values.name for s in given.sparse_initializers),
    )
    defaults = frozenset(stored if _has_defaults(record) else ())
    live = {v.name for v in graph.inputs} | defaults
    inputs = [_declared(i) for i in given.inputs if i.name in live]
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
