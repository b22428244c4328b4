"""Exports a module by each exporter and option, runs the models, and compares with torch."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

import sardonyx
from sardonyx.errors import SardonyxError
from tests.exported.module_case import ModuleCase
from tests.random_graphs.onnxruntime_process import OrtError, OrtProcess

SIZES = (3, 5)  # exported for the first, run with both where sizes are dynamic
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
SCRIPT = ("script, fixed", "script, dynamic")
DYNAMO = ("dynamo, fixed", "dynamo, fixed, raw", "dynamo, dynamic", "dynamo, dynamic, raw")
HAS_DYNAMO = importlib.util.find_spec("onnxscript") is not None
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case by one exporter."""

    case: str
    way: str
    kind: str  # same, refused, exporter, differs
    detail: str = ""


class Refused(Exception):
    """The exporter does not take a module."""


def outcomes(case: ModuleCase, ort: OrtProcess | None, ways: Sequence[str]) -> Iterator[Outcome]:
    """Yield the outcomes of a case by some of the exporters."""
    torch.manual_seed(0)
    module = case.build().eval()
    wanted = {n: _eager(module, case.inputs(n)) for n in SIZES}
    dynamic = _dynamic(case)
    for exporter in ("script", "dynamo"):
        for sizes in ("fixed", "dynamic"):
            names = [w for w in ways if w.startswith(f"{exporter}, {sizes}")]
            if not names or (sizes == "dynamic" and not any(dynamic)):
                continue
            try:
                models = _exported(case, module, dynamic if sizes == "dynamic" else None, exporter)
            except Refused as refusal:
                yield from (Outcome(case.name, w, "refused", str(refusal)) for w in names)
                continue
            used = SIZES if sizes == "dynamic" else SIZES[:1]
            for way, model in zip(names, models, strict=True):
                yield _compared(case, way, model, {n: wanted[n] for n in used}, ort)


def _eager(module: nn.Module, inputs: Sequence[Tensor]) -> list[Array]:
    with torch.no_grad():
        return [t.numpy() for t in _flat(module(*(x.clone() for x in inputs)))]


def _flat(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            if part is not None:
                yield from _flat(part)


def _dynamic(case: ModuleCase) -> list[list[int]]:
    """For each input the axes whose sizes differ between two calls."""
    small, large = (case.inputs(n) for n in SIZES)
    return [
        [i for i, (s, t) in enumerate(zip(a.shape, b.shape, strict=True)) if s != t]
        for a, b in zip(small, large, strict=True)
    ]


def _exported(
    case: ModuleCase, module: nn.Module, dynamic: list[list[int]] | None, exporter: str
) -> list[onnx.ModelProto]:
    inputs = tuple(case.inputs(SIZES[0]))
    with _quiet():
        try:
            if exporter == "script":
                given = torch.jit.script(module) if case.is_scripted else module
                return [_by_script(given, inputs, dynamic)]
            return _by_dynamo(module, inputs, dynamic)
        except Exception as error:  # whatever an exporter does not know it says in its own way
            text = str(error).strip().splitlines()
            raise Refused(f"{type(error).__name__}: {text[0] if text else ''}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the pages that exporters print about what they do."""
    with warnings.catch_warnings(), open(os.devnull, "w") as nothing:
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            with contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
                yield
        finally:
            logging.disable(logging.NOTSET)


def _by_script(
    module: Any, inputs: tuple[Tensor, ...], dynamic: list[list[int]] | None
) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(inputs))]
    given = dynamic or [[]] * len(inputs)
    axes = {x: {a: f"{x}_{a}" for a in found} for x, found in zip(names, given, strict=True)}
    file = io.BytesIO()
    torch.onnx.export(module, inputs, file, dynamo=False, input_names=names, dynamic_axes=axes)
    return onnx.load_from_string(file.getvalue())


def _by_dynamo(
    module: nn.Module, inputs: tuple[Tensor, ...], dynamic: list[list[int]] | None
) -> list[onnx.ModelProto]:
    shapes = None
    if dynamic is not None:
        each = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in dynamic)
        shapes = (each,) if _is_variadic(module) else each
    program = torch.export.export(module, inputs, dynamic_shapes=shapes)
    made = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False)
    assert made is not None
    raw = onnx.load_from_string(made.model_proto.SerializeToString())
    made.optimize()
    return [made.model_proto, raw]


def _is_variadic(module: nn.Module) -> bool:
    code = module.forward.__code__  # type: ignore[attr-defined]
    return bool(code.co_flags & 4)


def _compared(
    case: ModuleCase, way: str, model: onnx.ModelProto, wanted: dict[int, list[Array]],
    ort: OrtProcess | None,
) -> Outcome:  # fmt: skip
    feeds = {n: _fed(model, case.inputs(n)) for n in wanted}
    data = model.SerializeToString()
    detail = _difference(case, data, feeds, wanted)
    if not detail:
        return Outcome(case.name, way, "same")
    is_theirs = ort is not None and _is_theirs(case, data, feeds, ort)
    return Outcome(case.name, way, "exporter" if is_theirs else "differs", detail)


def _fed(model: onnx.ModelProto, inputs: Sequence[Tensor]) -> dict[str, Array]:
    """Inputs by name; an exporter may leave out those without readers."""
    names = [v.name for v in model.graph.input]
    if len(names) < len(inputs):
        return {name: inputs[int(name.removeprefix("x"))].numpy() for name in names}
    return {name: x.numpy() for name, x in zip(names, inputs, strict=True)}


def _difference(
    case: ModuleCase, data: bytes, feeds: dict[int, dict[str, Any]], wanted: dict[int, list[Array]]
) -> str:
    for level in LEVELS:
        options = sardonyx.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = sardonyx.GraphOptimizationLevel[level]
        try:
            session = sardonyx.InferenceSession(data, options)
            for n, given in feeds.items():
                for path, more in (("fast", ()), ("checked", (sardonyx.RunOptions(),))):
                    found = session.run(None, given, *more)
                    text = _unlike(found, wanted[n], case.close)
                    if text:
                        return f"{level}, n = {n}, {path}: {text}"
        except SardonyxError as error:
            return f"{level}: {type(error).__name__}: {error}"
    return ""


def _is_theirs(
    case: ModuleCase, data: bytes, feeds: dict[int, dict[str, Any]], ort: OrtProcess
) -> bool:
    """Whether the model itself does not do what the module does: onnxruntime does as we do."""
    try:
        found = ort.run(data, list(feeds.values()))
    except OrtError:
        return True
    return not _difference(case, data, feeds, dict(zip(feeds, found, strict=True)))


def _unlike(found: Sequence[Any], wanted: Sequence[Array], close: float) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} outputs and not {len(wanted)}"
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i} is {a.dtype}{list(a.shape)} and not {b.dtype}{list(b.shape)}"
        if b.dtype.kind == "f":
            if not np.allclose(a, b, rtol=close, atol=close, equal_nan=True):
                worst = float(np.nanmax(np.abs(a.astype(np.float64) - b.astype(np.float64))))
                return f"output {i} is off by {worst}"
        elif not np.array_equal(a, b):
            return (
                f"output {i} is {a.reshape(-1)[:8].tolist()} and not {b.reshape(-1)[:8].tolist()}"
            )
    return ""
