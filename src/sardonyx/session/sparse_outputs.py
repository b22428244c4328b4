"""Outputs that a model declares as sparse: nodes and constants are dense, results become sparse."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from sardonyx.graph.fact import Fact, SparseFact
from sardonyx.load.model import Declared
from sardonyx.program.program import Program


def sparse_outputs(declared: Sequence[Declared], program: Program) -> frozenset[int]:
    """Return the outputs that the model declares as sparse, and the program computes as dense."""
    pairs = zip(declared, program.outputs, strict=True)
    return frozenset(
        i
        for i, (output, computed) in enumerate(pairs)
        if isinstance(output.fact, SparseFact) and isinstance(computed.fact, Fact)
    )


def with_sparse(results: list[Any], indices: Sequence[int], sparse: Collection[int]) -> list[Any]:
    """Return results with sparse tensors, of flat indices, for arrays of outputs in `sparse`."""
    if not sparse:
        return results
    from sardonyx.ort.sparse_tensor import SparseTensor  # few models have sparse outputs

    return [
        SparseTensor.of_dense(r) if i in sparse and isinstance(r, np.ndarray) else r
        for r, i in zip(results, indices, strict=True)
    ]
