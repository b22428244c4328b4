"""Fusion of a matmul and its FastGelu into GemmFastGelu.

Graphs decompose GemmFastGelu, so this fusion edits the nodes of the ModelProto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import NodeProto, helper

from sardonyx.graph.op import MICROSOFT

if TYPE_CHECKING:
    from sardonyx.transformers.onnx_model import OnnxModel


def fuse_gemm_fast_gelu(model: OnnxModel) -> int:
    """Fuse each FastGelu of a product with a constant matrix; return how many there were."""
    makers, count = model.output_name_to_node(), 0
    for gelu in model.get_nodes_by_op_type("FastGelu"):
        product = makers.get(gelu.input[0])
        if product is None or not _is_linear(model, product):
            continue
        inputs = [*product.input, *gelu.input[1:]]
        name = model.create_node_name("GemmFastGelu")
        fused = helper.make_node("GemmFastGelu", inputs, gelu.output, name, domain=MICROSOFT)
        gelu.CopyFrom(fused)
        model.remove_node(product)
        count += 1
    return count


def _is_linear(model: OnnxModel, node: NodeProto) -> bool:
    """Whether a node multiplies by a constant matrix, for one reader only."""
    if node.op_type != "MatMul" or node.output[0] in model.get_graphs_output_names():
        return False
    weight = model.get_initializer(node.input[1])
    readers = model.input_name_to_nodes()[node.output[0]]
    return weight is not None and len(weight.dims) == 2 and len(readers) == 1
