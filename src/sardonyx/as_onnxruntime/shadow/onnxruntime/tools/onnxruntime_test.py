"""Latency of a model on random inputs, implemented by `sardonyx.tools`."""

from sardonyx.tools.onnxruntime_test import generate_feeds, main, run_model

__all__ = ["generate_feeds", "main", "run_model"]

if __name__ == "__main__":
    main()
