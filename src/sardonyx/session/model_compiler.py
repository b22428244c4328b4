"""ModelCompiler: a model, optimized once, as a file, bytes or a stream that any runtime loads."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO, Final, cast

from sardonyx.base.atomic_file import writing
from sardonyx.base.collector import Paused
from sardonyx.base.records import frozen, replace
from sardonyx.compile import Options, load_model
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.graph.const import Const, Ref
from sardonyx.graph.infer import infer
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.ort.enums import GraphOptimizationLevel, OrtCompileApiFlags
from sardonyx.ort.options import SessionOptions
from sardonyx.ort.ort_value import OrtValue
from sardonyx.save import MAX_BYTES, SaveOptions, save, serialized
from sardonyx.save.tensor import DataFile, External, stored_bytes
from sardonyx.save.wire import Message

_SUFFIX: Final = "_ctx.onnx"


@frozen
class OrtExternalInitializerInfo:
    """Where the bytes of an initializer are, outside a model."""

    filepath: str
    file_offset: int
    byte_size: int


LocationFunc = Callable[
    [str, OrtValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None
]


class ModelCompiler:
    """Optimizes a model and writes it in standard and com.microsoft ops.

    Providers that compile nodes into data of their own are not here, so that there are no EPContext
    nodes: what is written is the graph that a session with the same level runs, and loads
    anywhere. To save the time of loading, too, make a pack of it.
    """

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: LocationFunc | None = None,
    ) -> None:
        """Takes a model, options, and where its weights are to be."""
        if not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options is a SessionOptions, not {type(sess_options).__name__}")
        if not input_model_path_or_bytes:
            raise ValueError("the model is an empty path, or no bytes")
        self._model = input_model_path_or_bytes
        self._data_file = os.fspath(external_initializers_file_path or "") or None
        if self._data_file is not None and get_initializer_location_func is not None:
            raise ValueError(
                "external_initializers_file_path and get_initializer_location_func are both given"
            )
        self._threshold = external_initializers_size_threshold
        self._flags = OrtCompileApiFlags.NONE if flags is None else int(flags)
        self._locate = get_initializer_location_func
        self._options = sess_options.__copy__()
        self._options.graph_optimization_level = graph_optimization_level
        self._options.optimized_model_filepath = ""

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Writes the model to a path, or beside its own with _ctx.onnx for .onnx."""
        path = self._output_path(output_model_path)
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and os.path.exists(path):
            raise Fail(f"{path} exists already", hint="remove it, or compile without the flag")
        given, model = self._optimized()
        if self._locate is None:
            save(model, SaveOptions(path, self._data_file, self._threshold))
            return
        message = self._message(given, model, None)
        with writing(path) as file:
            message.write(file)

    def compile_to_bytes(self) -> bytes:
        """The model as bytes."""
        buffer = io.BytesIO()
        self._write(buffer)
        return buffer.getvalue()

    def compile_to_stream(self, write_function: Callable[[bytes], None]) -> None:
        """Hands the model to a function, piece by piece."""
        if not callable(write_function):
            raise TypeError(f"write_function is a function, not {type(write_function).__name__}")
        self._write(cast(BinaryIO, _Sink(write_function)))

    def set_ep_context_data_write_func(self, write_func: Callable[[str, Any], None]) -> None:
        """Kept for programs that call it: there is no data of providers to be written."""
        if not callable(write_func):
            raise TypeError(f"write_func is a function, not {type(write_func).__name__}")

    def clear_ep_context_data_write_func(self) -> None:
        """The counterpart of `set_ep_context_data_write_func`."""

    def _write(self, file: BinaryIO) -> None:
        given, model = self._optimized()
        data = None if self._data_file is None else DataFile(self._data_file, self._threshold)
        message = self._message(given, model, data)
        if data is not None and self._data_file is not None and not data.is_empty:
            with writing(self._data_file) as weights:
                data.write(weights)
        message.write(file)

    def _message(self, given: ModelBytes, model: Model, data: DataFile | None) -> Message:
        external: External | None = data
        if self._locate is not None:
            external = _Located(self._locate, given)
        message = serialized(model, external)
        if message.size > MAX_BYTES:
            raise InvalidArgument(
                f"the compiled model would have {message.size} bytes, and a message holds at most "
                f"{MAX_BYTES}",
                hint="give external_initializers_file_path",
            )
        return message

    def _output_path(self, given: str | os.PathLike[str] | None) -> str:
        if given:
            return os.fspath(given)
        if not isinstance(self._model, (str, os.PathLike)):
            raise InvalidArgument("a model in memory has no path", hint="give output_model_path")
        return os.fspath(self._model).removesuffix(".onnx") + _SUFFIX

    def _optimized(self) -> tuple[ModelBytes, Model]:
        """The line of stages from the model to what is written."""
        from sardonyx.passes import optimize
        from sardonyx.session.settings import compile_options

        if self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise Fail(
                "no provider compiles nodes to data of its own here",
                hint="compile without ERROR_IF_NO_NODES_COMPILED to get the optimized model",
            )
        options: Options = compile_options(self._options, frozenset(), None)
        given = read_model(self._model, options.load.folder, options.load.in_memory)
        with Paused():
            options.check()
            # What is saved must hold for any sizes, and for any values of inputs with a default.
            model = load_model(given, replace(options.load, split_names=True, fixes_defaults=False))
            infer(model.graph, assumes=False)
            model.check_outputs(options.load.is_strict)
            options.check()
            optimize(model.graph, options.passes)
        return given, model


class _Located:
    """Asks the user where each initializer is to be."""

    def __init__(self, locate: LocationFunc, given: ModelBytes) -> None:
        self._locate, self._given = locate, given

    def entries(self, const: Const, name: str) -> dict[str, object] | None:
        """What the function says, checked."""
        if not name:
            return None
        size = stored_bytes(const)
        said = self._locate(name, OrtValue(const.read()), self._known(const))
        if said is None:
            return None
        if not isinstance(said, OrtExternalInitializerInfo) or said.byte_size != size:
            raise InvalidArgument(
                f"the initializer {name} has {size} bytes, and its place is given as {said!r}"
            )
        return {"location": said.filepath, "offset": said.file_offset, "length": said.byte_size}

    def _known(self, const: Const) -> OrtExternalInitializerInfo | None:
        """Where an initializer is now, if that is outside the model."""
        if not isinstance(const, Ref) or const.source is self._given.source:
            return None
        return OrtExternalInitializerInfo(const.source.name, const.offset, const.length)


class _Sink:
    """A file of which only the writing is real."""

    def __init__(self, function: Callable[[bytes], None]) -> None:
        self._function = function

    def write(self, data: bytes | memoryview) -> int:
        """Passes bytes on."""
        self._function(bytes(data))
        return len(data)
