"""Inputs without default values, implemented by `sardonyx.tools`."""

from sardonyx.tools.command_lines import remove_initializer_from_input, remove_initializer_helper

__all__ = ["remove_initializer_from_input"]

if __name__ == "__main__":
    remove_initializer_helper()
