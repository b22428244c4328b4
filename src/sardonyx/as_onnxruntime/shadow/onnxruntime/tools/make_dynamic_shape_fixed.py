"""Fixed sizes of inputs, implemented by `sardonyx.tools`."""

from sardonyx.tools.command_lines import make_dynamic_shape_fixed_helper

__all__ = ["make_dynamic_shape_fixed_helper"]

if __name__ == "__main__":
    make_dynamic_shape_fixed_helper()
