"""`generate_artifacts`: the files that on-device training needs, from a forward model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import onnx

from sardonyx.base.atomic_file import writing
from sardonyx.base.log import logger
from sardonyx.errors import NotImplemented
from sardonyx.training import onnxblock
from sardonyx.training.onnxblock.blocks import MAX_CHECKED_BYTES

Name = str | bytes | os.PathLike[Any]


class LossType(Enum):
    """Losses that `generate_artifacts` adds to a model."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(Enum):
    """Optimizers that `generate_artifacts` makes a model of."""

    AdamW = 1
    SGD = 2


_LOSSES: Final[dict[LossType, Callable[[], onnxblock.Block]]] = {
    LossType.MSELoss: onnxblock.loss.MSELoss,
    LossType.CrossEntropyLoss: onnxblock.loss.CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: onnxblock.loss.BCEWithLogitsLoss,
    LossType.L1Loss: onnxblock.loss.L1Loss,
}
_OPTIMIZERS: Final = {OptimType.AdamW: onnxblock.optim.AdamW, OptimType.SGD: onnxblock.optim.SGD}


class _TrainingModel(onnxblock.TrainingBlock):
    """The loss on the outputs of the model, or on those named, and additional outputs."""

    def __init__(
        self, loss: onnxblock.Block, inputs: Sequence[str] | None, outputs: Sequence[str]
    ) -> None:
        super().__init__()
        self._loss = loss
        self._loss_inputs = inputs
        self._outputs = outputs

    def build(self, *inputs: str) -> tuple[str, ...]:
        loss = self._loss(*(self._loss_inputs or inputs))
        return (*((loss,) if isinstance(loss, str) else loss), *self._outputs)


def generate_artifacts(  # noqa: PLR0913 - the signature of onnxruntime
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: list[str] | None = None,
    frozen_params: list[str] | None = None,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    artifact_directory: Name | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: Name | None = None,
    additional_output_names: list[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: list[str] | None = None,
) -> None:
    """Write training_model.onnx, eval_model.onnx, optimizer_model.onnx and a checkpoint.

    `requires_grad` and `frozen_params` name initializers: the parameters, which are stored in the
    checkpoint; others stay in the models. `loss` is added to the model's outputs, or to those of
    `loss_input_names`; without one, the first output is differentiated. Loss and optimizer may be
    blocks; without an optimizer there is no optimizer model. `nominal_checkpoint` also writes a
    checkpoint without values.
    """
    _reject_ort_format(ort_format)
    loaded, path = _loaded(model)
    outputs = _output_names(additional_output_names)
    block = _TrainingModel(_loss_block(loss), loss_input_names, outputs)
    _choose_parameters(block, requires_grad or [], frozen_params or [])
    update = None if optimizer is None else _optimizer_block(optimizer)
    with onnxblock.base(loaded, path), _library(custom_op_library):
        block(*(output.name for output in loaded.graph.output))
    folder = Path.cwd() if artifact_directory is None else Path(os.fsdecode(artifact_directory))
    _save_block(block, folder, prefix, nominal_checkpoint)
    if update is not None:
        with onnxblock.empty_base(_opset(loaded)):
            update(block.parameters())
        _save(update.to_model_proto(), folder / f"{prefix}optimizer_model.onnx")


def _reject_ort_format(ort_format: bool) -> None:
    if ort_format:
        raise NotImplemented(
            "models in the .ort format are not written",
            hint="leave out ort_format: the .onnx artifacts have the same contents",
        )


def _save_block(
    block: onnxblock.TrainingBlock, folder: Path, prefix: str, nominal_checkpoint: bool
) -> None:
    """Write the models and checkpoints of a training block."""
    training, evaluation = block.to_model_proto()
    _save(training, folder / f"{prefix}training_model.onnx")
    _save(evaluation, folder / f"{prefix}eval_model.onnx")
    onnxblock.save_checkpoint(block.parameters(), folder / f"{prefix}checkpoint")
    if nominal_checkpoint:
        target = folder / f"{prefix}nominal_checkpoint"
        onnxblock.save_checkpoint(block.parameters(), target, nominal_checkpoint=True)


def _library(path: Name | None) -> contextlib.AbstractContextManager[Any]:
    if path is None:
        return contextlib.nullcontext()
    return onnxblock.custom_op_library(os.fsdecode(path))


def _loaded(model: Any) -> tuple[onnx.ModelProto, str | None]:
    if isinstance(model, str | os.PathLike):
        return onnx.load(model), os.fspath(model)
    if not isinstance(model, onnx.ModelProto):
        # onnxruntime raises RuntimeError here and below, which programs may catch.
        kind = type(model).__name__
        raise RuntimeError(f"the model must be a ModelProto or a path, got {kind}")  # noqa: TRY004
    if model.ByteSize() > MAX_CHECKED_BYTES:
        raise RuntimeError("the model has more than 2 GB: pass the path of its file instead")
    return model, None


def _loss_block(loss: Any) -> onnxblock.Block:
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        return _LOSSES[loss]()
    if not isinstance(loss, onnxblock.Block):
        kind = type(loss).__name__
        raise RuntimeError(f"the loss must be a LossType or a Block, got {kind}")  # noqa: TRY004
    block: onnxblock.Block = loss
    return block


def _optimizer_block(optimizer: Any) -> Any:
    if isinstance(optimizer, OptimType):
        return _OPTIMIZERS[optimizer]()
    if not isinstance(optimizer, onnxblock.Block):
        kind = type(optimizer).__name__
        raise TypeError(f"the optimizer must be an OptimType or an onnxblock.Block, got {kind}")
    return optimizer


def _output_names(names: Any) -> list[str]:
    if names and not isinstance(names, list):
        raise RuntimeError(
            f"additional_output_names must be a list of names, got {type(names).__name__}"
        )
    return names or []


def _choose_parameters(
    block: onnxblock.TrainingBlock, trainable: Sequence[str], frozen: Sequence[str]
) -> None:
    both = sorted(set(trainable) & set(frozen))
    if both:
        raise RuntimeError(f"requires_grad and frozen_params both name {', '.join(both)}")
    for name in trainable:
        block.requires_grad(name)
    for name in frozen:
        block.requires_grad(name, False)


def _opset(model: onnx.ModelProto) -> int | None:
    """Return the opset of the standard ops that the model imports."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    return max(versions, default=None)


def _save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, atomically."""
    if path.exists():
        logger.info("%s exists and is replaced", path)
    try:
        with writing(os.path.abspath(path)) as file:
            file.write(model.SerializeToString())
    except OSError as error:
        said = f"the artifact {path} cannot be written: {error.strerror}"
        raise type(error)(error.errno, said) from error
