"""The job of ray.yaml: score the Parquet files of a folder.

python score.py ROWS SCORED MODEL.onnx
"""

from __future__ import annotations

import math
import sys

import ray

import sardonyx.ray


def main(rows: str, scored: str, model: str) -> None:
    """Read, score and write; actors of one thread leave an eighth of the CPUs to the rest."""
    ray.init()
    cpus = int(ray.cluster_resources()["CPU"])
    pool = ray.data.ActorPoolStrategy(size=max(1, cpus - math.ceil(cpus / 8)))
    dataset = ray.data.read_parquet(rows)
    scorer = sardonyx.ray.predictor(model)
    result = dataset.map_batches(
        scorer, batch_format="pyarrow", batch_size=None, compute=pool, num_cpus=1
    )
    result.write_parquet(scored)


if __name__ == "__main__":
    main(*sys.argv[1:])
