"""Ranges and distributions of tensors, as calibration finds them, and files that keep them."""

from __future__ import annotations

import json
import os
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from enum import Enum
from typing import Any, Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.errors import InvalidArgument

_FLOATS: Final = frozenset(("avg", "std", "lowest", "highest", "hist_edges"))
_ALLOWED: Final = _FLOATS | {"hist", "bins"}


class CalibrationMethod(Enum):
    """How the range of a tensor follows from calibration data."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class TensorData:
    """What calibration found for one tensor: a range, a histogram, mean and deviation."""

    _allowed = _ALLOWED
    _floats = _FLOATS

    lowest: Any
    highest: Any
    avg: Any
    std: Any

    def __init__(self, **kwargs: Any) -> None:
        self._attrs = list(kwargs)
        for name, value in kwargs.items():
            if name not in _ALLOWED:
                raise ValueError(f"Unexpected value {name!r} not in {sorted(_ALLOWED)}.")
            if name in _FLOATS:
                dtype = getattr(value, "dtype", None)
                if dtype is None:
                    raise ValueError(
                        f"Unexpected type {type(value)} for k={name!r}: it is a numpy array"
                    )
                if dtype not in (np.float16, np.float32):
                    raise ValueError(
                        f"Unexpected dtype {dtype} for k={name!r}: it is float16 or float32"
                    )
            setattr(self, name, value)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """The smallest and the largest value."""
        if not hasattr(self, "lowest") or not hasattr(self, "highest"):
            raise AttributeError("Attributes 'lowest' and/or 'highest' missing")
        return self.lowest, self.highest

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """The mean and the standard deviation."""
        if not hasattr(self, "avg") or not hasattr(self, "std"):
            raise AttributeError("Attributes 'avg' and/or 'std' missing")
        return self.avg, self.std

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, for JSON."""
        return {**{k: getattr(self, k) for k in self._attrs}, "CLS": type(self).__name__}

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> TensorData:
        """Return the data of a dict that JSON has read."""
        values = {}
        for key, value in d.items():
            if key == "CLS":
                continue
            if isinstance(value, dict) and value.get("CLS") == "numpy.array":
                values[key] = np.array(value["data"], np.dtype(value["dtype"]))
            elif key in _FLOATS and isinstance(value, (int, float)):
                values[key] = np.array(value, np.float32)
            else:
                values[key] = value
        return cls(**values)


class TensorsData:
    """What calibration found, by tensor; only entries that exist can be replaced."""

    def __init__(self, calibration_method: CalibrationMethod, data: dict[str, Any]) -> None:
        self.calibration_method = calibration_method
        self.data: dict[str, TensorData] = {}
        for name, value in data.items():
            if not isinstance(name, str):
                raise TypeError(f"Keys must be strings not {type(name)}.")
            self.data[name] = self._entry(name, value)

    def _entry(self, name: str, value: Any) -> TensorData:
        if isinstance(value, TensorData):
            return value
        if not isinstance(value, tuple):
            raise TypeError(f"Values must be TensorData not {type(value)}.")
        if len(value) == 2 and self.calibration_method == CalibrationMethod.MinMax:
            return TensorData(lowest=value[0], highest=value[1])
        if len(value) == 4:
            return TensorData(lowest=value[0], highest=value[1], hist=value[2], bins=value[3])
        raise TypeError(f"Unexpected tuple for {name!r}, it has {len(value)} elements: {value}.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __getitem__(self, key: str) -> TensorData:
        return self.data[key]

    def __setitem__(self, key: str, value: TensorData) -> None:
        if key not in self.data:
            raise RuntimeError(f"Only an existing tensor can be modified, {key!r} is not.")
        self.data[key] = value

    def keys(self) -> KeysView[str]:
        """Return the names of the tensors."""
        return self.data.keys()

    def values(self) -> ValuesView[TensorData]:
        """Return the data of the tensors."""
        return self.data.values()

    def items(self) -> ItemsView[str, TensorData]:
        """Return names and data."""
        return self.data.items()

    def to_dict(self) -> dict[str, Any]:
        """Return the data, for JSON."""
        return {
            "CLS": type(self).__name__,
            "data": self.data,
            "calibration_method": self.calibration_method,
        }

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> TensorsData:
        """Return the data of a dict that JSON has read."""
        method = d["calibration_method"]
        if isinstance(method, dict) and method.get("CLS") == "CalibrationMethod":
            method = CalibrationMethod[method["value"].split(".")[-1]]
        return cls(method, {k: TensorData.from_dict(v) for k, v in d["data"].items()})


class CalibrationCacheEncoder(json.JSONEncoder):
    """Encodes calibration results, with numpy arrays and numbers, as JSON."""

    def default(self, obj: Any) -> Any:
        """Return what JSON can express for an object."""
        if isinstance(obj, (TensorData, TensorsData)):
            return obj.to_dict()
        if isinstance(obj, np.ndarray):
            return {"data": obj.tolist(), "dtype": str(obj.dtype), "CLS": "numpy.array"}
        if isinstance(obj, CalibrationMethod):
            return {"CLS": type(obj).__name__, "value": str(obj)}
        if isinstance(obj, np.generic):
            return obj.item()
        return super().default(obj)


def save_tensors_data(
    tensors_data: TensorsData, path: str | os.PathLike[str], *, smooth_quant: bool = False
) -> None:
    """Write calibration results to a JSON file; `smooth_quant`: of a model that was smoothed."""
    target = os.path.abspath(os.fspath(path))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    content = {**tensors_data.to_dict(), "smooth_quant": smooth_quant}
    text = json.dumps(content, cls=CalibrationCacheEncoder)
    with writing(target) as file:
        file.write(text.encode())


def load_tensors_data(path: str | os.PathLike[str]) -> TensorsData:
    """Read calibration results from a file that `save_tensors_data` has written."""
    return TensorsData.from_dict(read_cache(path))


def read_cache(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON of a calibration cache."""
    target = os.fspath(path)
    if not os.path.exists(target):
        raise FileNotFoundError(f"Calibration cache not found: {target}")
    if not os.path.isfile(target):
        raise ValueError(f"Calibration cache path is not a file: {target}")
    with open(target, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except ValueError:
            content = None  # not JSON
    if not isinstance(content, dict) or not {"data", "calibration_method"} <= content.keys():
        raise InvalidArgument(f"{target} is not a calibration cache", hint="delete it")
    return content
