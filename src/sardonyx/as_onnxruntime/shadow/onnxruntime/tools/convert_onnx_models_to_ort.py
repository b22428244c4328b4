"""Models in the .ort format, implemented by `sardonyx.tools`."""

from sardonyx.tools.convert_onnx_models_to_ort import (
    OptimizationStyle,
    convert_onnx_models_to_ort,
    main,
    parse_args,
)

__all__ = ["OptimizationStyle", "convert_onnx_models_to_ort", "parse_args"]

if __name__ == "__main__":
    main()
