"""Programs that tests build of native specs, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import sardonyx._native as native
from sardonyx.graph.dtype import by_numpy
from sardonyx.program.native import NO_LIMIT


def runnable(
    sequence: native.ProgramSpec, inputs: Mapping[str, Any], outputs: Sequence[Any]
) -> native.Runnable:
    """A sequence on one thread, with the numpy types of its inputs by name and of its outputs."""
    return native.Runnable(
        sequence,
        input_names=list(inputs),
        input_types=[np.dtype(t) for t in inputs.values()],
        output_types=[np.dtype(t) for t in outputs],
        output_dtypes=[_onnx(t) for t in outputs],
        pool=native.BlockPool(native.Caching.BLOCKS),
        threads=1,
        spins=False,
        spin_us=0,
        flushes_denormals=False,
        stops_spinning=False,
        grows_in_place=True,
        limit_bytes=NO_LIMIT,
        keep_alive=None,
    )


def _onnx(numpy_type: Any) -> int:
    dtype = by_numpy(np.dtype(numpy_type))
    assert dtype is not None
    return dtype.onnx
