"""`LinearLRScheduler` as onnxruntime-training 1.19.2 runs it, for programs tuned with it."""

from __future__ import annotations

from sardonyx.base.log import logger
from sardonyx.training import optimizer


class LinearLRScheduler(optimizer.LinearLRScheduler):
    """Takes the warm-up's steps for the total and the other way round.

    onnxruntime's Python class passes its arguments to a function that has them in the other order:
    the rate rises for `total_step_count` steps, and is 0 or the full one after that.
    """

    def __init__(
        self,
        optimizer: optimizer.Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
    ) -> None:
        if warmup_step_count != total_step_count:
            logger.warning(
                "LinearLRScheduler(warmup_step_count=%d, total_step_count=%d) is run as by "
                "onnxruntime, which exchanges the two; sardonyx.training.api has it as documented",
                warmup_step_count,
                total_step_count,
            )
        super().__init__(optimizer, total_step_count, warmup_step_count, initial_lr)
