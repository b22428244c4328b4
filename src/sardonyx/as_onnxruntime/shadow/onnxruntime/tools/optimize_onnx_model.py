"""Saving the optimized model, implemented by `sardonyx.tools`."""

from sardonyx.tools.command_lines import optimize_model_helper

__all__ = ["optimize_model_helper"]

if __name__ == "__main__":
    optimize_model_helper()
