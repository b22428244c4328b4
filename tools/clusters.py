"""Batch scoring on local clusters of Ray, Spark and Dask, of which a worker is killed.

    pip install 'ray[data]' pyspark 'dask[dataframe]' distributed     # Spark needs Java 17
    python tools/clusters.py [ray spark dask] [--rows 20000]

The table has numbers, strings, lists and nulls. The first process that gets rows is killed
(SIGKILL) before it answers; every row must come back once, as a Predictor here scores it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx.parser
import pyarrow as pa

from sardonyx.arrow.predictor import Predictor, Scoring

MODEL: Final = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] number, int64[n, 3] list, string[n] text)
    => (float[n] twice, int64[n, 3] copy, string[n] same) {
    twice = Add(number, number)  copy = Identity(list)  same = Identity(text)
}"""
SCORING: Final = Scoring(keep=["id"], nulls="null", lists=True)
WORKERS: Final = 2


def table(rows: int) -> pa.Table:
    """Rows with a null in every hundredth number."""
    ids = np.arange(rows)
    numbers = pa.array(ids.astype(np.float32), mask=ids % 100 == 7)
    lists = [[i, i + 1, i + 2] for i in range(rows)]
    return pa.table({"id": ids, "number": numbers, "list": lists, "text": [f"t{i}" for i in ids]})


def kill_once(marker: str) -> None:
    """End this process the hard way, unless another one was ended before."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def with_dask(model: str, rows: pa.Table) -> pa.Table:
    import dask
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    import sardonyx.dask

    dask.config.set({"dataframe.convert-string": False})  # lists would become strings, too
    frame = dd.from_pandas(rows.to_pandas(), npartitions=8)
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        scored = sardonyx.dask.score(frame, model, SCORING)
        marker = os.path.join(os.path.dirname(model), "killed")
        killing = scored.map_partitions(_after_kill, marker, meta=scored._meta)
        return pa.Table.from_pandas(killing.compute(), preserve_index=False)


def _after_kill(part: Any, marker: str) -> Any:
    kill_once(marker)
    return part


def with_spark(model: str, rows: pa.Table) -> pa.Table:
    from pyspark.sql import SparkSession

    import sardonyx.spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{WORKERS},4]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.createDataFrame(rows).repartition(8)
    marker = os.path.join(os.path.dirname(model), "killed")

    def killing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kill_once(marker)
        yield from batches

    scored = sardonyx.spark.score(frame.mapInArrow(killing, frame.schema), model, SCORING)
    return scored.toArrow()


def with_ray(model: str, rows: pa.Table) -> pa.Table:
    import ray

    import sardonyx.ray

    # One more than actors: the tasks that split the table need a CPU, too.
    ray.init(
        num_cpus=WORKERS + 1, include_dashboard=False, logging_level="ERROR", log_to_driver=False
    )
    scorer: Any = sardonyx.ray.predictor(model, SCORING)
    marker = os.path.join(os.path.dirname(model), "killed")

    class Killing(scorer):
        def __call__(self, block: pa.Table) -> pa.Table:
            kill_once(marker)
            return super().__call__(block)

    data = ray.data.from_arrow(rows).repartition(8)
    pool = ray.data.ActorPoolStrategy(size=WORKERS)
    scored = data.map_batches(Killing, batch_format="pyarrow", compute=pool)
    return pa.concat_tables(ray.get(scored.to_arrow_refs()))


ENGINES: Final[dict[str, Callable[[str, pa.Table], pa.Table]]] = {
    "dask": with_dask, "spark": with_spark, "ray": with_ray,
}  # fmt: skip


def check(name: str, rows: pa.Table) -> None:
    """Score the rows with an engine; raise if a row is missing, doubled or wrong."""
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model.onnx")
        Path(model).write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
        expected = Predictor(model, SCORING)(rows)
        found = ENGINES[name](model, rows).select(expected.column_names).sort_by("id")
        assert os.path.exists(os.path.join(folder, "killed")), "no worker was killed"
    for column in expected.column_names:
        wrong = [
            (mine, theirs)
            for mine, theirs in zip(
                expected.column(column).to_pylist(), found.column(column).to_pylist(), strict=True
            )
            if mine != theirs and not (mine is None and theirs != theirs)  # pandas has NaN for null
        ]
        assert not wrong, f"{name}: column {column} differs: {wrong[:3]}"
    print(f"{name}: {rows.num_rows} rows, one worker killed, each row once")


def main() -> None:
    """Check the engines that were named, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("engines", nargs="*", default=list(ENGINES), metavar="ENGINE")
    parser.add_argument("--rows", type=int, default=20_000)
    args = parser.parse_args()
    for name in args.engines:
        check(name, table(args.rows))


if __name__ == "__main__":
    main()
