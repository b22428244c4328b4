"""LoRA adapters: files of parameters in onnxruntime's format, fed to runs as inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from sardonyx.errors import InvalidArgument
from sardonyx.ort.adapters.adapter_file import Content, read, write
from sardonyx.ort.ort_value import OrtValue


class AdapterFormat:
    """An adapter that can be read, changed and written: parameters by name, and versions."""

    def __init__(self, adapter: AdapterFormat | Content | None = None) -> None:
        """Create an empty adapter, or one with the contents of another."""
        if isinstance(adapter, AdapterFormat):
            adapter = adapter._content
        self._content: Content = Content() if adapter is None else adapter

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """Read an adapter from a file; its parameters refer to the mapped file."""
        return AdapterFormat(read(os.fspath(file_path)))

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Write the adapter; the file is byte-identical to onnxruntime's."""
        write(os.fspath(file_path), self._content)

    def get_format_version(self) -> int:
        """Return the version of the file format; 0 if the adapter was not read from a file."""
        return self._content.format_version

    def get_adapter_version(self) -> int:
        """Return the version of the adapter."""
        return self._content.adapter_version

    def set_adapter_version(self, adapter_version: int) -> None:
        """Set the version of the adapter."""
        self._content.adapter_version = _number(adapter_version)

    def get_model_version(self) -> int:
        """Return the version of the adapter's model."""
        return self._content.model_version

    def set_model_version(self, model_version: int) -> None:
        """Set the version of the adapter's model."""
        self._content.model_version = _number(model_version)

    def get_parameters(self) -> dict[str, OrtValue]:
        """Return the parameters by name."""
        return dict(self._content.parameters)

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Set all parameters, without copying them."""
        for name, value in params.items():
            if not isinstance(name, str) or not isinstance(value, OrtValue):
                raise TypeError(f"parameters must be OrtValues by name, got {name!r}: {value!r}")
            if not value.is_tensor():
                raise InvalidArgument(f"the parameter {name} is not a tensor: {value.data_type()}")
        self._content.parameters = dict(params)

    format_version = property(get_format_version)
    adapter_version = property(get_adapter_version, set_adapter_version)
    model_version = property(get_model_version, set_model_version)
    parameters = property(get_parameters, set_parameters)


class LoraAdapter:
    """An adapter for runs: see `RunOptions.add_active_adapter`."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._feed: dict[str, Any] = {}

    def Load(self, file_path: str | os.PathLike[str]) -> None:  # noqa: N802 - onnxruntime's name
        """Map an adapter file; runs read its parameters on demand."""
        path = os.path.abspath(os.fspath(file_path))
        self._feed = {name: value._fed() for name, value in read(path).parameters.items()}
        self._path = path

    def __getstate__(self) -> str | None:
        return self._path

    def __setstate__(self, path: str | None) -> None:
        self.__init__()  # type: ignore[misc]  # reset to the initial state
        if path is not None:
            self.Load(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return LoraAdapter, (), self._path

    def __deepcopy__(self, memo: object) -> LoraAdapter:
        return self  # immutable except for Load


def adapter_feed(adapters: Sequence[LoraAdapter], inputs: AbstractSet[str]) -> dict[str, Any]:
    """Return the parameters of adapters as inputs of a model."""
    feed: dict[str, Any] = {}
    for adapter in adapters:
        for name, value in adapter._feed.items():
            if name not in inputs:
                raise InvalidArgument(
                    f"the adapter has a parameter {name}, and the model has no such input",
                    adapter=adapter._path,
                )
            if name in feed:
                raise InvalidArgument(
                    f"two active adapters have a parameter {name}", adapter=adapter._path
                )
            feed[name] = value
    return feed


def _number(value: Any) -> int:
    if not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise InvalidArgument(f"a version must be a 32-bit integer, got {value!r}")
    return value
