"""Which family lowers which op; families are imported when a model has one of their ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Final

from sardonyx.graph.graph import Node
from sardonyx.ops.declare import ML
from sardonyx.place.provider import No
from sardonyx.providers.cpu.call import Lowered

Lowering = Callable[[Node], Lowered | No]

# Each family is a module here with a table LOWERINGS: (domain, op) -> Lowering.
FAMILIES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "linear_ml": (
        (ML, "ArrayFeatureExtractor"),
        (ML, "Binarizer"),
        (ML, "FeatureVectorizer"),
        (ML, "Imputer"),
        (ML, "LabelEncoder"),
        (ML, "LinearClassifier"),
        (ML, "LinearRegressor"),
        (ML, "Normalizer"),
        (ML, "Scaler"),
    ),
    "recurrent": (("", "GRU"), ("", "LSTM"), ("", "RNN")),
    "softmax": (("", "Softmax"),),
    "trees": (
        (ML, "TreeEnsemble"),
        (ML, "TreeEnsembleClassifier"),
        (ML, "TreeEnsembleRegressor"),
    ),
}
_FAMILY_OF: Final = {key: family for family, keys in FAMILIES.items() for key in keys}


@cache
def lowering(key: tuple[str, str]) -> Lowering | None:
    """How nodes of an op are lowered; None for ops without kernels."""
    family = _FAMILY_OF.get(key)
    if family is None:
        return None
    module = importlib.import_module(f"sardonyx.providers.cpu.{family}")
    made: Lowering = module.LOWERINGS[key]
    return made
