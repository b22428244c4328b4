"""The job of spark.yaml: score the Parquet files of a folder.

spark-submit spark_score.py ROWS SCORED MODEL.onnx
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import sardonyx.spark


def main(rows: str, scored: str, model: str) -> None:
    """Read, score and write."""
    spark = SparkSession.builder.appName("score").getOrCreate()
    sardonyx.spark.score(spark.read.parquet(rows), model).write.parquet(scored)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
