"""Ops without a torch function run on devices by their decompositions."""

from __future__ import annotations

import pytest

import sardonyx
from sardonyx.ops import all_ops
from tests.oracle import difference, feeds_of, model_of
from tests.test_ops import CASES, GOOD, results, title, weights_among

pytest.importorskip("torch")
from sardonyx.providers.torch.index import KERNELS

PROVIDERS = [("TorchExecutionProvider", {"device": "cpu"}), "CPUExecutionProvider"]
# Ops that only training has; tests/native/test_attention_training.py and test_nbits_gradient.py,
# and tests/train/test_step_statistics.py test them.
_TRAINING = {
    ("sardonyx.train", name)
    for name in ("AttentionTraining", "AttentionGradient", "MatMulNBitsGradient", "SampleVariance")
}
OPS = {op.key for op in all_ops() if op.decomposition is not None} - KERNELS.keys() - _TRAINING
DECOMPOSED = [i for i in GOOD if (CASES[i].domain, CASES[i].op) in OPS]
ULPS = 64


@pytest.mark.parametrize("index", DECOMPOSED, ids=title)
def test_decomposed(index: int) -> None:
    case = CASES[index]
    constants = weights_among(case)
    model = model_of(case, constants=constants).SerializeToString()
    session = sardonyx.InferenceSession(model, providers=PROVIDERS)
    feeds = {k: v for k, v in feeds_of(case).items() if k not in constants}
    found = session.run(None, feeds)
    assert not (why := difference(list(found), list(results(index)), ULPS)), why


def test_every_op_has_a_case() -> None:
    assert {(CASES[i].domain, CASES[i].op) for i in DECOMPOSED} == OPS
