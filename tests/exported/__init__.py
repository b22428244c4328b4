"""torch modules as torch's exporters write them, held against torch itself."""

from tests.exported import layers, tensors

ROWS = (*layers.ROWS, *tensors.ROWS)
