"""Batch scoring of Arrow tables: rows per second and memory, against a bare session.

    python bench/batch_scoring.py MODEL.onnx [--rows 1000000] [--engines session arrow dask spark]

The table has random floats for the features of the model's only input. "session" runs a session
with one thread over a matrix that is ready, in runs of 4096 rows; "arrow" is a Predictor with one
thread; "dask", "spark" and "ray" score the same table in --workers processes of one thread. Engines
are interleaved, the best of --rounds counts. PSS is that of all worker processes, in MB.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import sardonyx
from sardonyx.arrow.predictor import Predictor, Scoring

ENGINES: Final = ("session", "arrow", "dask", "spark", "ray")
SESSION_ROWS: Final = 4096
SCORING: Final = Scoring(keep=False)


def random_table(model: str, rows: int) -> pa.Table:
    """A column of random floats for each feature of the model's only input."""
    (given,) = sardonyx.InferenceSession(model).get_inputs()
    width = given.shape[1]
    numbers = np.random.default_rng(0).standard_normal((width, rows), np.float32)
    return pa.table(list(numbers), names=[f"c{i}" for i in range(width)])


def session_engine(model: str, table: pa.Table) -> Callable[[], None]:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 1
    session = sardonyx.InferenceSession(model, options)
    (name,) = (given.name for given in session.get_inputs())
    matrix = np.stack([column.to_numpy() for column in table.columns], axis=1)

    def score() -> None:
        for begin in range(0, len(matrix), SESSION_ROWS):
            session.run(None, {name: matrix[begin : begin + SESSION_ROWS]})

    return score


def arrow_engine(model: str, table: pa.Table) -> Callable[[], None]:
    predictor = Predictor(model, SCORING, threads=1)
    return lambda: print(end="" if predictor(table).num_rows == table.num_rows else "wrong\n")


def dask_engine(model: str, table: pa.Table, workers: int) -> Callable[[], Any]:
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    import sardonyx.dask

    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    client = Client(cluster)
    frame = dd.from_pandas(table.to_pandas(), npartitions=4 * workers).persist()
    scored = sardonyx.dask.score(frame, model, SCORING)
    return lambda: client.compute(scored.count().sum()).result()


def spark_engine(model: str, table: pa.Table, workers: int) -> Callable[[], Any]:
    from pyspark.sql import SparkSession

    import sardonyx.spark

    builder = SparkSession.builder.master(f"local[{workers}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "6g").getOrCreate()
    frame = spark.createDataFrame(table).repartition(4 * workers).cache()
    frame.count()
    scored = sardonyx.spark.score(frame, model, SCORING)
    return lambda: scored.write.format("noop").mode("overwrite").save()


def ray_engine(model: str, table: pa.Table, workers: int) -> Callable[[], Any]:
    import ray

    import sardonyx.ray

    ray.init(num_cpus=workers, include_dashboard=False, logging_level="ERROR")
    data = ray.data.from_arrow(table).repartition(4 * workers).materialize()
    scorer = sardonyx.ray.predictor(model, SCORING)
    pool = ray.data.ActorPoolStrategy(size=workers)
    scored = data.map_batches(scorer, batch_format="pyarrow", compute=pool, batch_size=None)
    return lambda: scored.materialize().count()


def descendants(pid: int) -> Iterator[int]:
    """The processes that this one started, and those that they did."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def shared_megabytes() -> float:
    """PSS of all descendants of this process that loaded the engine."""
    total = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if "sardonyx/_native" in Path(f"/proc/{pid}/maps").read_text():
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1e3


def main() -> None:
    """Print a line for each engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--engines", nargs="+", default=["session", "arrow"], choices=ENGINES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    table = random_table(args.model, args.rows)
    runs: dict[str, Callable[[], Any]] = {}
    for name in args.engines:
        make: Any = globals()[f"{name}_engine"]
        alone = name in ("session", "arrow")
        runs[name] = make(args.model, table) if alone else make(args.model, table, args.workers)
        runs[name]()  # opens sessions, packs, and finds the number of rows of a run
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(args.rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
    for name, seconds in best.items():
        print(f"{name:8} {args.rows / seconds / 1e3:10.1f} thousand rows per second")
    print(f"workers  {shared_megabytes():10.1f} MB PSS")


if __name__ == "__main__":
    main()
