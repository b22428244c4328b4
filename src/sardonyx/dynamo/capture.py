"""Settings of TorchDynamo, which captures the graphs."""

from __future__ import annotations

import logging

import torch._dynamo.config as dynamo_config
from torch._dynamo.utils import _get_dynamo_config_for_logging


def skip_warnings_once() -> None:
    """Have TorchDynamo skip `Logger.warning_once`, a method that transformers adds.

    It would break the graph there, after tracing the model in vain: GPT-2 is traced three times for
    one warning about its configuration. transformers itself omits most such calls while compiling.
    """
    method = getattr(logging.Logger, "warning_once", None)
    skipped = getattr(dynamo_config, "ignore_logger_methods", None)
    if method is None or not isinstance(skipped, set) or method in skipped:
        return
    skipped.add(method)
    try:
        _get_dynamo_config_for_logging()
    except (
        TypeError
    ):  # torch 2.11 writes this set into its metrics, and logs an error at each graph
        skipped.discard(method)
