"""Sessions of a model: with options, and from files of several kinds."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import sardonyx
from sardonyx.compile import Options
from sardonyx.compile.pack_model import Request, pack
from sardonyx.providers import resolve
from tests.metamorphic.calls import CALLS
from tests.metamorphic.variant import Settings

PROVIDERS = ["CPUExecutionProvider"]


def run(model: bytes, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """The outputs of a model, in this process."""
    with contextlib.ExitStack() as stack, np.errstate(all="ignore"):
        source: Any = model
        if settings.stored:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            source = STORED[settings.stored](model, folder, settings)
        return CALLS[settings.way](lambda: session(source, settings), feeds, settings)


def session(model: Any, settings: Settings, saves: str = "") -> sardonyx.InferenceSession:
    """A session as settings want it; `saves` is where the optimized model goes."""
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = settings.threads
    options.enable_cpu_mem_arena = options.enable_mem_pattern = settings.arena
    if settings.parallel:
        options.execution_mode = sardonyx.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = 2
    if settings.level:
        options.graph_optimization_level = sardonyx.GraphOptimizationLevel[settings.level]
    if saves:
        options.optimized_model_filepath = saves
    for name, size in settings.dims:
        options.add_free_dimension_override_by_name(name, size)
    return sardonyx.InferenceSession(model, options, providers=PROVIDERS)


# ------------------------------------------------------------------------- files to load it from


def packed(model: bytes, folder: Path, settings: Settings) -> str:
    """A model beside its pack."""
    path = folder / "model.onnx"
    path.write_bytes(model)
    pack(str(path), Options(resolve(None, None)[1]), Request(f"{path}.pack"))
    return str(path)


def saved(model: bytes, folder: Path, settings: Settings) -> str:
    """Return the optimized model that a session saves."""
    path = str(folder / "saved.onnx")
    session(model, settings, path)
    return path


def external(model: bytes, folder: Path, settings: Settings) -> str:
    """A model whose constants are in another file."""
    path = str(folder / "model.onnx")
    onnx.save_model(
        onnx.ModelProto.FromString(model), path, save_as_external_data=True, location="weights",
        size_threshold=0, convert_attribute=False,
    )  # fmt: skip
    return path


STORED: dict[str, Callable[[bytes, Path, Settings], str]] = {
    "packed": packed,
    "saved": saved,
    "external": external,
}
