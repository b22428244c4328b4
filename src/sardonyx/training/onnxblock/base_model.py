"""The model that blocks edit: one at a time, set by `base` or `empty_base`."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager

import onnx

from sardonyx.base.records import mutable
from sardonyx.ort.options import SessionOptions


class ModelAccessor:
    """The model that blocks edit, and the path that it was loaded from."""

    def __init__(self, model: onnx.ModelProto, model_path: str | None = None) -> None:
        self._model = model
        self._path = model_path

    @property
    def model(self) -> onnx.ModelProto:
        """The model as it is edited so far."""
        return self._model

    @property
    def path(self) -> str:
        """The path of the model; an error if it was given as a ModelProto only."""
        if self._path is None:
            raise RuntimeError("the base model was not given with its path")
        return self._path

    @property
    def has_path(self) -> bool:
        """Whether the path of the model is known."""
        return self._path is not None


@mutable
class _Current:
    """The model that is edited, inside of `base` or `empty_base`."""

    accessor: ModelAccessor | None = None


_current = _Current()


def current() -> ModelAccessor | None:
    """Return what `base` or `empty_base` have set; None outside of them."""
    return _current.accessor


def edited_model() -> onnx.ModelProto:
    """Return the model that blocks edit."""
    if _current.accessor is None:
        raise RuntimeError("blocks must be called inside of onnxblock.base(model) or empty_base()")
    return _current.accessor.model


@contextmanager
def base(model: onnx.ModelProto, model_path: str | None = None) -> Iterator[ModelAccessor]:
    """Make blocks edit a copy of a model inside a `with` statement."""
    if model is None:
        raise RuntimeError("the base model is None; use onnxblock.empty_base to build a new one")
    with _editing(ModelAccessor(copy.deepcopy(model), model_path)) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Make blocks build a new model inside a `with` statement; default: the newest opset."""
    model = onnx.ModelProto()
    model.producer_name = "sardonyx"
    model.graph.name = "graph"
    standard = onnx.helper.make_opsetid("", opset_version or onnx.defs.onnx_opset_version())
    model.opset_import.extend([onnx.helper.make_opsetid("com.microsoft", 1), standard])
    # The lowest version that the opset allows: older runtimes read it.
    model.ir_version = onnx.helper.find_min_ir_version_for([standard])
    with _editing(ModelAccessor(model)) as accessor:
        yield accessor


@contextmanager
def _editing(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    if _current.accessor is not None:
        raise RuntimeError("there is a base model already; leave its `with` statement first")
    _current.accessor = accessor
    try:
        yield accessor
    finally:
        _current.accessor = None


@contextmanager
def custom_op_library(
    custom_op_library_path: str | os.PathLike[str],
) -> Iterator[str | os.PathLike[str]]:
    """Raise an error: libraries for onnxruntime's C API are not supported."""
    if not os.path.exists(custom_op_library_path):
        raise RuntimeError(f"there is no library of custom ops {custom_op_library_path}")
    SessionOptions().register_custom_ops_library(custom_op_library_path)
    yield custom_op_library_path
