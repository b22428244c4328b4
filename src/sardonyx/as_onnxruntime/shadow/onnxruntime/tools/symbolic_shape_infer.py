"""Symbolic shape inference, implemented by `sardonyx.tools`."""

from sardonyx.tools.symbolic_shape_infer import (
    SymbolicShapeInference,
    get_attribute,
    get_dim_from_proto,
    get_elem_type_from_type_proto,
    get_opset,
    get_shape_from_type_proto,
    get_shape_from_value_info,
    is_sequence,
    main,
    parse_arguments,
)

__all__ = [
    "SymbolicShapeInference",
    "get_attribute",
    "get_dim_from_proto",
    "get_elem_type_from_type_proto",
    "get_opset",
    "get_shape_from_type_proto",
    "get_shape_from_value_info",
    "is_sequence",
    "parse_arguments",
]

if __name__ == "__main__":
    main()
