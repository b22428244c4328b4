"""The two sides of a comparison: a model, and the runtime and options that run it.

A side computes any values of its graph, which become the outputs of a session. All other values
stay intermediate, so the graph is optimized and fused as in a normal run, but at these values.
"""

from __future__ import annotations

import importlib
import io
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from sardonyx.base.protobuf_wire import Message
from sardonyx.base.records import frozen, replace
from sardonyx.cli.bench_worker import unused
from sardonyx.compile import load_model
from sardonyx.errors import Fail
from sardonyx.graph.copy import copy_nodes
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.load import LoadOptions, read_record
from sardonyx.load.model import Declared, Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.ort.config_keys import Keys
from sardonyx.passes.options import LEVELS

_GRAPH, _OUTPUT, _NAME = 7, 12, 1  # field numbers of ModelProto, GraphProto and ValueInfoProto
_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_CHUNK: Final = 64 << 20  # bytes per copied piece

Key = tuple[int, int]  # a value: position of its node in topological order, index of the output


@frozen
class SideOptions:
    """How one side runs its model."""

    model: str
    runtime: str = "sardonyx"
    level: str = "all"
    precision: str = "exact"
    providers: tuple[tuple[str, dict[str, str]], ...] = ()
    isa: str = ""  # empty: that of this process
    threads: int = 0


class ComparedModel:
    """A model whose values are named by their position."""

    def __init__(self, path: str) -> None:
        self.bytes: Final[ModelBytes] = read_model(path)
        self.model: Final[Model] = load_model(self.bytes, LoadOptions(fixes_defaults=True))
        self.nodes: Final[list[Node]] = self.model.graph.sorted_nodes()
        self.positions: Final = {node: i for i, node in enumerate(self.nodes)}

    def key(self, value: Value) -> Key:
        """Return the position of a value that a node of the main graph makes."""
        assert value.node is not None
        return self.positions[value.node], value.index

    def value(self, key: Key) -> Value:
        """Return the value at a position."""
        return self.nodes[key[0]].outputs[key[1]]

    def with_outputs(self, keys: Sequence[Key]) -> Model:
        """Return the part of the model that computes some values, which are its outputs.

        Without the other nodes, values before a node that cannot run are computed nevertheless.
        """
        whole, graph, copies = self.model.graph, Graph(self.model.graph.name), dict[Value, Value]()
        for value in whole.inputs:
            copies[value] = Value(value.name, value.fact)
            graph.add_input(copies[value], whole.defaults.get(value))
        copy_nodes(self._nodes_for(keys), graph, copies)
        graph.set_outputs([copies[self.value(key)] for key in keys])
        declared = [Declared(str(i), None, None) for i in range(len(keys))]
        return replace(self.model, graph=graph, outputs=declared)

    def _nodes_for(self, keys: Sequence[Key]) -> list[Node]:
        """Return the nodes that compute some values, in topological order."""
        stack = [self.nodes[position] for position, _ in keys]
        needed = set(stack)
        while stack:
            makers = {value.node for value in stack.pop().reads()}
            new = [m for m in makers if m in self.positions and m not in needed]
            needed.update(m for m in new if m is not None)
            stack.extend(m for m in new if m is not None)
        return sorted(needed, key=self.positions.__getitem__)

    @property
    def weight_bytes(self) -> int:
        """The bytes of all constants that nodes read."""
        consts = {
            value: value.const
            for node in self.model.graph.all_nodes()
            for value in node.inputs
            if value is not None and value.const is not None
        }
        return sum(const.size_bytes for const in consts.values())


class Side(Protocol):
    """Runs a model for some of its values."""

    def can_compute(self, key: Key) -> bool:
        """Return whether the runtime can return a value."""
        ...

    def compute(self, keys: Sequence[Key], feed: Mapping[str, Any]) -> list[Any]:
        """Return values of one run."""
        ...

    def outputs(self, feed: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of the unchanged model."""
        ...


class SardonyxSide:
    """Sessions of this process."""

    def __init__(self, loaded: ComparedModel, options: SideOptions) -> None:
        self._loaded = loaded
        self._options = options

    def can_compute(self, key: Key) -> bool:
        """Return whether the value is there: unused optional outputs may have no type."""
        value = self._loaded.value(key)
        return value.is_used or bool(value.name)

    def compute(self, keys: Sequence[Key], feed: Mapping[str, Any]) -> list[Any]:
        """Compile the part of the model that computes these values, and run it."""
        model = self._loaded.with_outputs(keys)
        used = {value.name for value in model.graph.inputs}
        return self._run(model, {name: array for name, array in feed.items() if name in used})

    def outputs(self, feed: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of the unchanged model."""
        return self._run(self._options.model, feed)

    def _run(self, model: Any, feed: Mapping[str, Any]) -> list[Any]:
        from sardonyx.ort.options import SessionOptions
        from sardonyx.session import InferenceSession

        chosen, options = self._options, SessionOptions()
        options.intra_op_num_threads = chosen.threads
        options.graph_optimization_level = LEVELS[chosen.level]
        options.add_session_config_entry(Keys.PRECISION, chosen.precision)
        session = InferenceSession(model, options, providers=list(chosen.providers) or None)
        if what := unused(session, chosen.providers):
            raise Fail(what, hint="see the warning for the reason, or name another provider")
        results: list[Any] = session.run(None, feed)
        self._loaded.bytes.release_pages()  # while the other side runs
        return results


class OnnxRuntimeSide:
    """Sessions of a module with onnxruntime's interface."""

    def __init__(self, loaded: ComparedModel, options: SideOptions) -> None:
        self._loaded = loaded
        self._options = options
        graph = read_record(loaded.bytes).graph
        assert graph is not None
        self._outputs = [output.name for output in graph.outputs]
        # Values inside functions, and those that upgrading to a newer opset adds, have no name
        # in the file.
        self._names = {name for node in graph.nodes for name in node.outputs if name}
        try:
            self._module: Any = importlib.import_module(options.runtime)
        except ImportError as error:
            raise Fail(f"{options.runtime} cannot be imported: {error}") from None
        if not hasattr(self._module, "InferenceSession"):
            raise Fail(f"{options.runtime} does not have onnxruntime's interface")

    def can_compute(self, key: Key) -> bool:
        """Return whether the value has a name in the model file."""
        return self._loaded.value(key).name in self._names

    def compute(self, keys: Sequence[Key], feed: Mapping[str, Any]) -> list[Any]:
        """Run the model with these values as additional outputs."""
        return self._run([self._loaded.value(key).name for key in keys], feed)

    def outputs(self, feed: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of the unchanged model."""
        return self._run(self._outputs, feed)

    def _run(self, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        options = self._module.SessionOptions()
        options.intra_op_num_threads = self._options.threads
        options.log_severity_level = 4
        level = LEVELS[self._options.level].name
        options.graph_optimization_level = getattr(self._module.GraphOptimizationLevel, level)
        providers = list(self._options.providers) or [("CPUExecutionProvider", {})]
        tail = _additional_outputs([name for name in names if name not in self._outputs])
        source = self._loaded.bytes.source.data
        try:
            if self._loaded.bytes.files.sources():  # the weights are elsewhere: the file is small
                options.add_session_config_entry(_FOLDER, self._loaded.bytes.files.folder or ".")
                session = self._module.InferenceSession(bytes(source) + tail, options, providers)
            else:
                with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
                    for i in range(0, source.nbytes, _CHUNK):
                        file.write(source[i : i + _CHUNK])
                    file.write(tail)
                    file.flush()
                    session = self._module.InferenceSession(file.name, options, providers)
            results: list[Any] = session.run(list(names), dict(feed))
        except Exception as error:  # a runtime may raise anything
            raise Fail(f"{self._options.runtime} cannot run the model: {error}") from error
        return results


def _additional_outputs(names: Sequence[str]) -> bytes:
    """Return bytes that add outputs to the graph of a serialized model that they are appended to.

    Parsers of protobuf merge a message that occurs twice: repeated fields are concatenated.
    """
    graph = Message()
    for name in names:
        graph.message(_OUTPUT, Message().text(_NAME, name))
    file = io.BytesIO()
    Message().message(_GRAPH, graph).write(file)
    return file.getvalue() if names else b""
