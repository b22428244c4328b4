"""Batch scoring with Dask: `sardonyx.dask.score(ddf, "model.onnx")`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sardonyx.arrow.node_packs import default_folder
from sardonyx.arrow.predictor import Predictor, Scoring

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd


def score(
    df: dd.DataFrame,
    model: str | os.PathLike[str] | bytes,
    scoring: Scoring | None = None,
    *,
    threads: int = 1,
    pack_cache: str | None = None,
) -> dd.DataFrame:
    """Return the Dask DataFrame with a column for each output of the model.

    Each worker process keeps one session. Dask runs as many partitions at once as a worker has
    threads, so a run has one thread.
    """
    predictor = Predictor(
        model,
        scoring,
        threads=threads,
        pack_cache=default_folder() if pack_cache is None else pack_cache,
    )
    meta = predictor.schema(pa.Schema.from_pandas(df._meta, preserve_index=False))
    empty = meta.empty_table().to_pandas().set_index(df._meta.index[:0])
    return df.map_partitions(_scored, predictor, meta=empty)


def _scored(part: pd.DataFrame, predictor: Predictor) -> Any:
    """Return a partition with the outputs' columns, and its own index."""
    scored = predictor(pa.Table.from_pandas(part, preserve_index=False)).to_pandas()
    return scored.set_index(part.index)
