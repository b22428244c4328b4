"""Names in a model, implemented by `sardonyx.training`; blocks of programs import this module."""

from sardonyx.training.onnxblock.graph_edit import (
    generate_graph_name,
    get_input_from_input_name,
    get_output_from_output_name,
    node_arg_exists,
    register_graph_outputs,
)

__all__ = [
    "generate_graph_name",
    "get_input_from_input_name",
    "get_output_from_output_name",
    "node_arg_exists",
    "register_graph_outputs",
]
