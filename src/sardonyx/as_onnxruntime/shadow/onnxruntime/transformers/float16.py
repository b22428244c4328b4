"""Models in float16, implemented by `sardonyx.transformers`."""

from sardonyx.transformers.float16 import (
    ALWAYS_FLOAT_INPUTS,
    DEFAULT_OP_BLOCK_LIST,
    InitializerTracker,
    convert_float_to_float16,
    convert_np_to_float16,
    convert_tensor_float_to_float16,
    float_to_float16_max_diff,
    make_value_info_from_tensor,
)

__all__ = [
    "ALWAYS_FLOAT_INPUTS",
    "DEFAULT_OP_BLOCK_LIST",
    "InitializerTracker",
    "convert_float_to_float16",
    "convert_np_to_float16",
    "convert_tensor_float_to_float16",
    "float_to_float16_max_diff",
    "make_value_info_from_tensor",
]
