"""ModelCompiler: writes an optimized model to a file, bytes or a stream that any runtime loads."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, BinaryIO, Final, cast

from sardonyx.base.atomic_file import writing
from sardonyx.base.gc_pause import GcPause
from sardonyx.base.protobuf_wire import Message
from sardonyx.base.records import frozen, replace
from sardonyx.compile import Options, load_model
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.graph.const import Const, SourceConst
from sardonyx.graph.infer import infer
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.ort.device_enums import OrtCompileApiFlags
from sardonyx.ort.enums import GraphOptimizationLevel
from sardonyx.ort.options import SessionOptions
from sardonyx.ort.ort_value import OrtValue
from sardonyx.save import MAX_BYTES, SaveOptions, save, serialized
from sardonyx.save.tensor import DataFile, External, stored_bytes

_SUFFIX: Final = "_ctx.onnx"


@frozen
class OrtExternalInitializerInfo:
    """The location of an initializer's external data."""

    filepath: str
    file_offset: int
    byte_size: int


LocationFunc = Callable[
    [str, OrtValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None
]


class ModelCompiler:
    """Optimizes a model and writes it in standard and com.microsoft ops.

    No provider here compiles nodes into data of its own, so there are no EPContext nodes: the
    output is the optimized graph of a session with the same level, and loads anywhere. A pack
    saves the time of loading as well.
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
        """Set the model, the options, and the location of its weights."""
        if not isinstance(sess_options, SessionOptions):
            raise TypeError(
                f"sess_options must be a SessionOptions, got {type(sess_options).__name__}"
            )
        if not input_model_path_or_bytes:
            raise ValueError("the model is an empty path or empty bytes")
        self._model = input_model_path_or_bytes
        self._data_file = os.fspath(external_initializers_file_path or "") or None
        if self._data_file is not None and get_initializer_location_func is not None:
            raise ValueError(
                "external_initializers_file_path excludes get_initializer_location_func"
            )
        self._threshold = external_initializers_size_threshold
        self._flags = OrtCompileApiFlags.NONE if flags is None else int(flags)
        self._locate = get_initializer_location_func
        self._options = sess_options.__copy__()
        self._options.graph_optimization_level = graph_optimization_level
        self._options.optimized_model_filepath = ""

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Write the model to a path; the default is its own with _ctx.onnx in place of .onnx."""
        path = self._output_path(output_model_path)
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and os.path.exists(path):
            raise Fail(f"{path} exists already", hint="remove it, or compile without the flag")
        source, model = self._optimized()
        if self._locate is None:
            save(model, SaveOptions(path, self._data_file, self._threshold))
            return
        message = self._message(source, model, None)
        with writing(path) as file:
            message.write(file)

    def compile_to_bytes(self) -> bytes:
        """Return the model as bytes."""
        buffer = io.BytesIO()
        self._write(buffer)
        return buffer.getvalue()

    def compile_to_stream(self, write_function: Callable[[bytes], None]) -> None:
        """Pass the model to a function in chunks."""
        if not callable(write_function):
            raise TypeError(
                f"write_function must be a function, got {type(write_function).__name__}"
            )

        def write(data: Any) -> None:
            try:
                write_function(bytes(data))
            except Exception as error:
                what = f"the function that writes the model raised {type(error).__name__}: {error}"
                raise Fail(what) from error

        # `Message.write` calls nothing but `write`.
        self._write(cast(BinaryIO, SimpleNamespace(write=write)))

    def set_ep_context_data_write_func(self, write_func: Callable[[str, Any], None]) -> None:
        """Do nothing: for compatibility. No provider has data to write."""
        if not callable(write_func):
            raise TypeError(f"write_func must be a function, got {type(write_func).__name__}")

    def clear_ep_context_data_write_func(self) -> None:
        """Do nothing: for compatibility."""

    def _write(self, file: BinaryIO) -> None:
        source, model = self._optimized()
        data = None if self._data_file is None else DataFile(self._data_file, self._threshold)
        message = self._message(source, model, data)
        # The weights first: a model never exists without the file that it refers to.
        if data is not None and self._data_file is not None and not data.is_empty:
            with writing(self._data_file) as weights:
                data.write(weights)
        message.write(file)

    def _message(self, source: ModelBytes, model: Model, data: DataFile | None) -> Message:
        external: External | None = data
        if self._locate is not None:
            external = _UserLocations(self._locate, source)
        message = serialized(model, external)
        if message.size > MAX_BYTES:
            raise InvalidArgument(
                f"the compiled model would have {message.size} bytes, and protobuf allows at most "
                f"{MAX_BYTES}",
                hint="give external_initializers_file_path",
            )
        return message

    def _output_path(self, path: str | os.PathLike[str] | None) -> str:
        if path:
            return os.fspath(path)
        if not isinstance(self._model, (str, os.PathLike)):
            raise InvalidArgument("a model in memory has no path", hint="give output_model_path")
        return os.fspath(self._model).removesuffix(".onnx") + _SUFFIX

    def _optimized(self) -> tuple[ModelBytes, Model]:
        """Load, infer and optimize the model."""
        from sardonyx.passes import optimize
        from sardonyx.session.compile_config import compile_options

        if self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise Fail(
                "Unable to compile any nodes: no provider compiles nodes to data of its own",
                hint="compile without ERROR_IF_NO_NODES_COMPILED to get the optimized model",
            )
        options: Options = compile_options(self._options, frozenset(), None)
        source = read_model(self._model, options.load.folder, options.load.in_memory)
        with GcPause():
            options.check()
            # A saved model must be valid for any sizes, and any values of inputs with a default.
            load = replace(options.load, split_names=True, fixes_defaults=False)
            model = load_model(source, load)
            infer(model.graph, assumes=False)
            model.check_outputs(options.load.is_strict)
            options.check()
            optimize(model.graph, options.passes)
        return source, model


class _UserLocations:
    """External data whose locations the user's function returns, one initializer at a time."""

    def __init__(self, locate: LocationFunc, source: ModelBytes) -> None:
        self._locate, self._model = locate, source

    def entries(self, const: Const, name: str) -> dict[str, object] | None:
        """Return the external data entries of an initializer; None: it is stored in the model."""
        if not name:
            return None
        size = stored_bytes(const)
        info = self._locate(name, OrtValue(const.read()), self._current(const))
        if info is None:
            return None
        if not isinstance(info, OrtExternalInitializerInfo) or info.byte_size != size:
            raise InvalidArgument(
                f"the initializer {name} has {size} bytes, and its location is {info!r}"
            )
        return {"location": info.filepath, "offset": info.file_offset, "length": info.byte_size}

    def _current(self, const: Const) -> OrtExternalInitializerInfo | None:
        """Return where an initializer is stored now; None: in the model itself."""
        if not isinstance(const, SourceConst) or const.source is self._model.source:
            return None
        return OrtExternalInitializerInfo(const.source.name, const.offset, const.length)
