"""LoRA over a decoder with 4-bit weights: gradients as with float weights, which do not appear."""

from __future__ import annotations

import numpy as np

import sardonyx
from sardonyx.train import gradient
from tests.train.decoder import Decoder, feeds_of

SIZES = (64, 4, 2, 96, 50)


def test_gradients_are_those_of_float_weights() -> None:
    sessions = []
    for is_quantized in (True, False):
        decoder = Decoder(2, SIZES, is_quantized)
        made = gradient(decoder.built(), "loss", list(decoder.weights))
        sessions.append(sardonyx.InferenceSession(made))
    feeds = feeds_of(decoder, 2, 7)
    ours, wanted = (session.run(None, feeds) for session in sessions)
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(a, b, 2e-4, 2e-5 * np.abs(b).max())


def test_float_weights_do_not_appear() -> None:
    """No value of the gradient graph has as many elements as a quantized weight."""
    decoder = Decoder(1, (64, 4, 2, 96, 40_000), is_quantized=True)
    names = list(decoder.weights)
    graph = gradient(decoder.built(), "loss", names, dims={"batch": 1, "length": 5}).graph
    limit = 64 * 40_000
    for node in graph.all_nodes():
        for value in node.outputs:
            count = np.prod(value.tensor.static or (1,))
            assert count < limit, f"{node} makes {value}"
