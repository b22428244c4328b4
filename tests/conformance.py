"""The backend suite that ships with onnx: its cases, and when results are as close as they ask."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case import model as model_cases
from onnx.backend.test.loader import DATA_DIR, load_model_tests

from sardonyx.graph.dtype import by_numpy

DataSets = Sequence[tuple[Sequence[Any], Sequence[Any]]]

# Their expected values come out of numpy's generator; only types and shapes can be compared.
RANDOM = ("test_bernoulli", "test_training_dropout")
NOT_RANDOM = ("test_training_dropout_zero_ratio",)

# What onnx allows its own reference where the default tolerance is out of reach.
LOOSER = {
    **{
        f"test_dft{part}{opset}": (1e-3, 1e-6)
        for part in ("", "_axis", "_inverse")
        for opset in ("", "_opset19")
    },
    "test_celu_bfloat16_expanded": (1e-2, 1e-2),
}


@dataclass(frozen=True)
class Case:
    """A model with inputs and the outputs that they must give; read when the test runs."""

    kind: str
    name: str
    load: Callable[[], tuple[ModelProto, DataSets]]
    rtol: float
    atol: float

    def __str__(self) -> str:
        return f"{self.kind}/{self.name.removeprefix('test_')}"

    @property
    def is_random(self) -> bool:
        """Whether only types and shapes of its outputs can be compared."""
        return self.name.startswith(RANDOM) and not self.name.startswith(NOT_RANDOM)

    def runs(self) -> Iterator[tuple[ModelProto, dict[str, Any], list[Any]]]:
        """The model with feeds and the outputs that they must give, for each data set."""
        model, data_sets = self.load()
        names = [i.name for i in _fed(model)]
        for inputs, outputs in data_sets:
            feeds = dict(zip(names, map(_value, inputs), strict=True))
            yield model, feeds, [_value(v) for v in outputs]


@functools.cache
def suite() -> list[Case]:
    """All cases; those of single nodes are made by running the modules that describe them."""
    # Without Pillow the cases of ImageDecoder are images that onnx stores, the same everywhere.
    with _without("PIL"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [*_made(), *_stored()]


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Makes imports of a module fail; what is imported meanwhile stays."""
    missing = object()
    before: Any = sys.modules.get(name, missing)
    sys.modules[name] = None  # type: ignore[assignment]  # which makes an import fail
    try:
        yield
    finally:
        if before is missing:
            del sys.modules[name]
        else:
            sys.modules[name] = before


def _made() -> Iterator[Case]:
    for case in [*load_model_tests(kind="node"), *model_cases.collect_testcases()]:
        rtol, atol = LOOSER.get(case.name, (case.rtol, case.atol))
        if case.model is None:
            stem = Path(DATA_DIR, "light", f"light_{case.model_name}")
            yield Case("light", case.name, functools.partial(_light, stem), rtol, atol)
        else:
            made = (case.model, case.data_sets)
            yield Case(case.kind, case.name, lambda made=made: made, rtol, atol)


def _stored() -> Iterator[Case]:
    for kind in ("pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            load = functools.partial(_from_folder, Path(case.model_dir))
            yield Case(kind, case.name, load, case.rtol, case.atol)


def _light(stem: Path) -> tuple[ModelProto, DataSets]:
    """A known network whose weights are all the same number, on numbers from 0 to 1."""
    model = onnx.load(f"{stem}.onnx")
    shape = [d.dim_value or 1 for d in _fed(model)[0].type.tensor_type.shape.dim]
    image = np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)
    output = TensorProto.FromString(Path(f"{stem}_output_0.pb").read_bytes())
    return model, [([image.astype(np.float32)], [output])]


def _from_folder(folder: Path) -> tuple[ModelProto, DataSets]:
    def tensors(data: Path, role: str, count: int) -> list[TensorProto]:
        files = (data / f"{role}_{i}.pb" for i in range(count))
        return [TensorProto.FromString(file.read_bytes()) for file in files]

    model = onnx.load(folder / "model.onnx")
    n_in, n_out = len(_fed(model)), len(model.graph.output)
    folders = sorted(folder.glob("test_data_set_*"))
    return model, [(tensors(d, "input", n_in), tensors(d, "output", n_out)) for d in folders]


def _fed(model: ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {t.name for t in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in constants]


def _value(value: Any) -> Any:
    """A value of the suite as a session takes and gives it."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return [_value(v) for v in value]
    return np.asarray(value)


def agree(want: Any, got: Any, case: Case) -> None:
    """Fails unless two values are of one type and shape, and their numbers are close."""
    if isinstance(want, (list, dict)):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for key in want if isinstance(want, dict) else range(len(want)):
            agree(want[key], got[key], case)
    elif want is None or got is None:
        assert want is got
    else:
        _agree_arrays(np.asarray(want), np.asarray(got), case)


def _agree_arrays(want: Any, got: Any, case: Case) -> None:
    assert got.shape == want.shape
    if want.dtype.kind in "OUS":
        assert got.astype(str).tolist() == want.astype(str).tolist()
        return
    assert got.dtype == want.dtype
    if case.is_random:
        return
    dtype, rtol = by_numpy(want.dtype), case.rtol
    assert dtype is not None
    if dtype.name == "bf16":
        rtol = max(rtol, 2**-6)  # two steps of that type
    if dtype.bits < 32 and dtype.kind != "bool":
        want, got = want.astype(np.float32), got.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol, case.atol)
