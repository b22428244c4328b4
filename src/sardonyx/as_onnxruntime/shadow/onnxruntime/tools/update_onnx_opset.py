"""Models in another opset, implemented by `sardonyx.tools`."""

from sardonyx.tools.command_lines import update_onnx_opset_helper

__all__ = ["update_onnx_opset_helper"]

if __name__ == "__main__":
    update_onnx_opset_helper()
