"""Sizes, an internal op: tensors computed from symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dim import evaluate
from sardonyx.graph.fact import Fact
from sardonyx.graph.op import INTERNAL, Op, required
from sardonyx.ops.arrays import Array

sizes = Op("Sizes", 1, "", "y:T", attrs={"fact": required("type")}, domain=INTERNAL)


sizes.infer(lambda g, *, fact: fact)


@sizes.reference
def _(dims: Mapping[str, int], *, fact: Fact) -> Array:
    """Return a small integer tensor of symbolic sizes, evaluated for this run's dims."""
    shape, elements = fact.static, fact.sym
    assert shape is not None
    assert elements is not None
    numbers = [evaluate(e, dims) for e in elements]
    try:
        return np.array(numbers, fact.dtype.np).reshape(shape)
    except OverflowError:
        raise InvalidArgument(
            f"a computed size does not fit {fact.dtype}: {numbers!r:.200}", sizes=list(elements)
        ) from None


OPS: Final = (sizes,)
