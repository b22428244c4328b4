"""Calibration tables for TensorRT: JSON, FlatBuffers and text."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.base.flatbuffer_writer import file, table, tables, text
from sardonyx.quantization.tensors_data import CalibrationCacheEncoder


def write_calibration_table(calibration_cache: Any, dir: str = ".") -> None:
    """Write the largest value of each tensor to calibration.json, .flatbuffers and .cache."""
    largest = {name: _largest(calibration_cache[name]) for name in sorted(calibration_cache.keys())}
    encoded = json.dumps(calibration_cache, cls=CalibrationCacheEncoder)
    lines = "".join(f"{name} {value}\n" for name, value in largest.items())
    contents = {
        "calibration.json": encoded.encode(),
        "calibration.flatbuffers": _flatbuffer(largest),
        "calibration.cache": lines.encode(),
    }
    for name, content in contents.items():
        with writing(os.path.join(dir, name)) as out:
            out.write(content)


def _largest(data: Any) -> str:
    """Return the larger end of a tensor's range as text."""
    values = data.to_dict()
    ends = [values.get(name, np.zeros(())) for name in ("highest", "lowest")]
    return str(max(float(np.asarray(end).item()) for end in ends))


def _flatbuffer(entries: dict[str, str]) -> bytes:
    """Return the table `TrtTable`, a vector `dict` of tables with a key and a value."""
    rows = [table([text(key), text(value)]) for key, value in entries.items()]
    return bytes(file(table([tables(rows)]), b""))
