"""Functions over models, implemented by `sardonyx.tools`."""

from sardonyx.tools.onnx_model_utils import (
    ModelProtoWithShapeInfo,
    fix_output_shapes,
    get_opsets_imported,
    get_optimization_level,
    get_producer_consumer_maps,
    is_fixed_size_tensor,
    iterate_graph_per_graph_func,
    iterate_graph_per_node_func,
    make_dim_param_fixed,
    make_input_shape_fixed,
    optimize_model,
    remove_invalid_dim_values,
    update_onnx_opset,
)

__all__ = [
    "ModelProtoWithShapeInfo",
    "fix_output_shapes",
    "get_opsets_imported",
    "get_optimization_level",
    "get_producer_consumer_maps",
    "is_fixed_size_tensor",
    "iterate_graph_per_graph_func",
    "iterate_graph_per_node_func",
    "make_dim_param_fixed",
    "make_input_shape_fixed",
    "optimize_model",
    "remove_invalid_dim_values",
    "update_onnx_opset",
]
