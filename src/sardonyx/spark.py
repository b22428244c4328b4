"""Batch scoring with Spark: `sardonyx.spark.score(df, "model.onnx")`, or a pandas UDF.

Both pass Arrow data between Spark and the session. Tasks of one Python worker share a session,
with as many threads as a task has CPUs, and the workers of a machine share packed weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sardonyx.arrow.node_packs import default_folder
from sardonyx.arrow.predictor import Predictor, Scoring
from sardonyx.base.records import replace
from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


def score(
    df: DataFrame,
    model: str | os.PathLike[str] | bytes,
    scoring: Scoring | None = None,
    *,
    threads: int | None = None,
    pack_cache: str | None = None,
) -> DataFrame:
    """Return the DataFrame with a column for each output of the model, by `mapInArrow`."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    predictor = _predictor(model, scoring or Scoring(), threads, pack_cache)
    schema = from_arrow_schema(predictor.schema(to_arrow_schema(df.schema)))
    return df.mapInArrow(predictor.batches, schema)


def udf(
    model: str | os.PathLike[str] | bytes,
    columns: Sequence[str],
    scoring: Scoring | None = None,
    *,
    threads: int | None = None,
    pack_cache: str | None = None,
) -> Callable[..., Any]:
    """Return a pandas UDF: it takes columns, which the model knows by these names.

    Its result is one output of the model: the only one, or the one that `scoring.outputs` names.
    """
    from pyspark.sql.functions import pandas_udf
    from pyspark.sql.pandas.types import from_arrow_type

    given = replace(scoring or Scoring(), keep=False)
    predictor = _predictor(model, given, threads, pack_cache)
    names = list(columns)
    inputs = pa.schema([(name, pa.float32()) for name in names])
    outputs = predictor.schema(inputs)
    if len(outputs) != 1:
        raise InvalidArgument(
            f"the model has the outputs {', '.join(outputs.names)}, and a UDF returns one",
            hint="choose it: Scoring(outputs=[name])",
        )

    def scored(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        for batch in batches:
            arrays = [pa.Array.from_pandas(series) for series in batch]
            yield predictor(pa.table(arrays, names=names)).column(0).to_pandas()

    scored.__annotations__ = _annotations()
    function: Callable[..., Any] = pandas_udf(scored, from_arrow_type(outputs.types[0]))
    return function


def task_cpus() -> int:
    """Return how many CPUs Spark gives to the task that calls this; at least one."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return 1 if task is None else max(1, task.cpus())


def _predictor(
    model: str | os.PathLike[str] | bytes,
    scoring: Scoring,
    threads: int | None,
    pack_cache: str | None,
) -> Predictor:
    return Predictor(
        model,
        replace(scoring, lists=True),
        threads=task_cpus if threads is None else threads,
        pack_cache=default_folder() if pack_cache is None else pack_cache,
    )


def _annotations() -> dict[str, Any]:
    """Return the types by which Spark recognizes a UDF over batches of several columns."""
    import pandas as pd

    return {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
