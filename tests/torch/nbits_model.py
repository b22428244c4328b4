"""A gated block of a decoder with n-bit weights."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, helper, numpy_helper, parser

HIDDEN, INNER, BLOCK = 64, 96, 32
_TEXT = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[1,n,64] x) => (float[1,n,64] y) <float[64] gain>
{
  normed = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-5> (x, gain)
  gate, up = Split <axis = -1, num_outputs = 2> (both)
  s = Sigmoid (gate)
  silu = Mul (gate, s)
  gated = Mul (silu, up)
  y = Add (x, down)
}"""


def gated_block(bits: int, last_bits: int) -> ModelProto:
    """x + down(silu(gate(norm(x))) * up(norm(x))); the products have weights of so many bits."""
    model, rng = parser.parse_model(_TEXT), np.random.default_rng(3)
    graph = model.graph
    del graph.initializer[:]
    graph.initializer.append(
        numpy_helper.from_array(rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32), "gain")
    )
    nodes = list(graph.node)
    products = [("normed", "both", HIDDEN, 2 * INNER, bits, 1)]
    products += [("gated", "down", INNER, HIDDEN, last_bits, 6)]
    for x, name, k, n, width, at in products:
        q = rng.integers(0, 256, (n, k // BLOCK, BLOCK * width // 8), np.uint8)
        scale = rng.uniform(0.5, 1.5, (n, k // BLOCK)) / (1 << width)
        graph.initializer.append(numpy_helper.from_array(q, name + "_q"))
        graph.initializer.append(numpy_helper.from_array(scale.astype(np.float32), name + "_s"))
        nodes.insert(
            at,
            helper.make_node(
                "MatMulNBits", [x, name + "_q", name + "_s"], [name], name,
                domain="com.microsoft", K=k, N=n, bits=width, block_size=BLOCK,
            ),
        )  # fmt: skip
    del graph.node[:]
    graph.node.extend(nodes)
    return model
