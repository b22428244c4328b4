"""torch modules as torch's exporters write them, held against torch itself."""

from tests.exported import layers, tensors

CASES = (*layers.CASES, *tensors.CASES)
