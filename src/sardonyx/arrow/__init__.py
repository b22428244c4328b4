"""Batch scoring of Arrow data: columns in, columns out.

`predict(table, model)` scores a table; `Predictor` keeps its session, is pickled as its model and
options, and is what `sardonyx.ray`, `sardonyx.spark` and `sardonyx.dask` run in their workers.
`columns` assigns columns to inputs, `read` makes arrays of columns, `write` columns of arrays, and
`batch_rows` chooses the number of rows of a run.
"""

from sardonyx.arrow.predictor import Predictor, predict

__all__ = ["Predictor", "predict"]
