"""Batch scoring of Arrow data: columns in, columns out.

`predict(table, model)` scores a table. A `Predictor` keeps its session and is pickled as its model
and options; `sardonyx.ray`, `sardonyx.spark` and `sardonyx.dask` run it in their workers. `columns`
assigns columns to inputs, `read` converts columns to arrays, `write` arrays to columns, and
`batch_rows` tunes the batch size.
"""

from sardonyx.arrow.predictor import Predictor, predict

__all__ = ["Predictor", "predict"]
