"""Batch scoring with Ray Data: `dataset.map_batches(sardonyx.ray.predictor("model.onnx"), ...)`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sardonyx.arrow.node_packs import default_folder
from sardonyx.arrow.predictor import Predictor, Scoring

if TYPE_CHECKING:
    import pyarrow as pa


def predictor(
    model: str | os.PathLike[str] | bytes,
    scoring: Scoring | None = None,
    *,
    threads: int | None = None,
    pack_cache: str | None = None,
) -> type[Callable[[pa.Table], pa.Table]]:
    """Return a class for `map_batches` with `batch_format="pyarrow"` and `concurrency=n`.

    Each of the n actors keeps one session. It has as many threads as its actor has CPUs
    (`num_cpus`), and the actors of a machine share packed weights through `pack_cache`.
    """
    shared = Predictor(
        model,
        scoring,
        threads=assigned_cpus if threads is None else threads,
        pack_cache=default_folder() if pack_cache is None else pack_cache,
    )

    class SardonyxPredictor:
        """Scores blocks of a dataset."""

        def __init__(self) -> None:
            shared.session  # noqa: B018 - opened before the first block comes

        def __call__(self, block: pa.Table) -> pa.Table:
            return shared(block)

    return SardonyxPredictor


def assigned_cpus() -> int:
    """Return how many CPUs Ray gave to the actor or task that calls this; at least one."""
    import ray

    resources = ray.get_runtime_context().get_assigned_resources()
    return max(1, int(resources.get("CPU", 1)))
