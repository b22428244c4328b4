"""A program for onnxruntime-training's on-device API: makes artifacts, trains, writes results.

    python tests/training/program.py NAME FOLDER [ARTIFACTS [CHECKPOINT]]

It imports nothing of Sardonyx, so that onnxruntime-training and `python -m sardonyx.as_onnxruntime`
run it unchanged. With ARTIFACTS, the models and the checkpoint of that folder are used; with
CHECKPOINT, which was saved after half of the steps, the other half is run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

STEPS: Final = 50
HALF: Final = 25
Arrays = dict[str, np.ndarray]


def _model(nodes, inputs, outputs, weights: Arrays) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _floats(name: str, *dims) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def _random(rng, *shape: int, scale: float = 0.3) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def mlp() -> tuple[onnx.ModelProto, dict, Callable]:
    """A classifier of two layers, one of whose biases is frozen."""
    rng = np.random.default_rng(0)
    weights = {
        "fc1.weight": _random(rng, 16, 6), "fc1.bias": _random(rng, 16),
        "fc2.weight": _random(rng, 4, 16), "fc2.bias": _random(rng, 4),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1),
        helper.make_node("Relu", ["h"], ["a"], "relu"),
        helper.make_node("Gemm", ["a", "fc2.weight", "fc2.bias"], ["scores"], "fc2", transB=1),
    ]
    model = _model(nodes, [_floats("x", "batch", 6)], [_floats("scores", "batch", 4)], weights)
    names = {
        "requires_grad": ["fc1.weight", "fc2.weight", "fc2.bias"],
        "frozen_params": ["fc1.bias"],
        "loss": artifacts.LossType.CrossEntropyLoss,
        "optimizer": artifacts.OptimType.AdamW,
    }

    def batch(rng):
        x = _random(rng, 8, 6, scale=1.0)
        return x, x[:, :4].argmax(1)

    return model, names, batch


def convnet() -> tuple[onnx.ModelProto, dict, Callable]:
    """Two convolutions, pooling and a classifier, trained by SGD."""
    rng = np.random.default_rng(1)
    weights = {
        "conv1.weight": _random(rng, 4, 1, 3, 3), "conv1.bias": _random(rng, 4),
        "conv2.weight": _random(rng, 6, 4, 3, 3), "conv2.bias": _random(rng, 6),
        "fc.weight": _random(rng, 6, 3), "fc.bias": _random(rng, 3),
    }  # fmt: skip
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["x", "conv1.weight", "conv1.bias"], ["c1"], "conv1", **pads),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], "pool", **pool),
        helper.make_node("Conv", ["p1", "conv2.weight", "conv2.bias"], ["c2"], "conv2", **pads),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"], "average"),
        helper.make_node("Flatten", ["g"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["scores"], "fc"),
    ]
    model = _model(nodes, [_floats("x", 4, 1, 8, 8)], [_floats("scores", 4, 3)], weights)
    names = {
        "requires_grad": list(weights),
        "loss": artifacts.LossType.CrossEntropyLoss,
        "optimizer": artifacts.OptimType.SGD,
    }

    def batch(rng):
        labels = rng.integers(0, 3, 4)
        return _random(rng, 4, 1, 8, 8, scale=1.0) * np.float32(labels).reshape(4, 1, 1, 1), labels

    return model, names, batch


def transformer() -> tuple[onnx.ModelProto, dict, Callable]:
    """A pre-norm transformer block with attention of two heads, trained on a regression."""
    rng = np.random.default_rng(2)
    width, heads, length = 8, 2, 5
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    weights = {
        "norm1.weight": ones, "norm1.bias": zeros, "norm2.weight": ones, "norm2.bias": zeros,
        "query": _random(rng, width, width), "key": _random(rng, width, width),
        "value": _random(rng, width, width), "out": _random(rng, width, width),
        "up": _random(rng, width, 16), "up.bias": _random(rng, 16),
        "down": _random(rng, 16, width), "down.bias": _random(rng, width),
    }  # fmt: skip
    constants = {
        "split": np.array([0, length, heads, width // heads], np.int64),
        "join": np.array([0, length, width], np.int64),
        "scale": np.array(0.5, np.float32), "half": np.array(0.5, np.float32),
        "root": np.array(2**-0.5, np.float32), "one": np.array(1, np.float32),
    }  # fmt: skip
    node = helper.make_node

    def norm(x: str, name: str, y: str):
        # onnxruntime-training reads the mean and the inverse deviation in the gradient.
        outputs = [y, f"{name}.mean", f"{name}.inverse"]
        return node("LayerNormalization", [x, f"{name}.weight", f"{name}.bias"], outputs, name)

    nodes = [norm("x", "norm1", "n1")]
    for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["n1", name], [f"{name}_m"], f"{name}_matmul"),
            node("Reshape", [f"{name}_m", "split"], [f"{name}_s"], f"{name}_split"),
            node("Transpose", [f"{name}_s"], [f"{name}_t"], f"{name}_transpose", perm=perm),
        ]
    nodes += [
        node("MatMul", ["query_t", "key_t"], ["qk"], "scores"),
        node("Mul", ["qk", "scale"], ["scaled"], "scaled"),
        node("Softmax", ["scaled"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "value_t"], ["pv"], "mix"),
        node("Transpose", ["pv"], ["pv_t"], "merge", perm=[0, 2, 1, 3]),
        node("Reshape", ["pv_t", "join"], ["joined"], "joined"),
        node("MatMul", ["joined", "out"], ["attended"], "out_matmul"),
        node("Add", ["x", "attended"], ["residual"], "residual"),
        norm("residual", "norm2", "n2"),
        node("MatMul", ["n2", "up"], ["u0"], "up_matmul"),
        node("Add", ["u0", "up.bias"], ["u"], "up_bias"),
        node("Mul", ["u", "root"], ["u_root"], "gelu1"),
        node("Erf", ["u_root"], ["u_erf"], "gelu2"),
        node("Add", ["u_erf", "one"], ["u_one"], "gelu3"),
        node("Mul", ["u", "u_one"], ["u_mul"], "gelu4"),
        node("Mul", ["u_mul", "half"], ["g"], "gelu5"),
        node("MatMul", ["g", "down"], ["d0"], "down_matmul"),
        node("Add", ["d0", "down.bias"], ["d"], "down_bias"),
        node("Add", ["residual", "d"], ["y"], "y"),
    ]
    shape = ("batch", length, width)
    model = _model(nodes, [_floats("x", *shape)], [_floats("y", *shape)], weights | constants)
    names = {
        "requires_grad": list(weights),
        "loss": artifacts.LossType.MSELoss,
        "optimizer": artifacts.OptimType.AdamW,
    }

    def batch(rng):
        x = _random(rng, 4, length, width, scale=1.0)
        return x, np.tanh(x[:, ::-1]).astype(np.float32)

    return model, names, batch


def _regression(loss: artifacts.LossType, optimizer: onnxblock.Block) -> Callable:
    """The network of `mlp` with targets in [0, 1], another loss and another optimizer."""

    def net() -> tuple[onnx.ModelProto, dict, Callable]:
        model, names, batch = mlp()

        def targets(rng):
            x, _ = batch(rng)
            return x, (x[:, :4] > 0).astype(np.float32)

        return model, names | {"loss": loss, "optimizer": optimizer}, targets

    return net


clip = onnxblock.optim.ClipGradNorm
NETS: Final = {
    "mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "clipped": _regression(
        artifacts.LossType.BCEWithLogitsLoss,
        onnxblock.optim.AdamW(betas=(0.8, 0.99), weight_decay=0.1, clip_grad=clip(0.1)),
    ),
    "sgd": _regression(artifacts.LossType.L1Loss, onnxblock.optim.SGD(clip_grad=clip(0.2))),
}


def train(name: str, folder: str, given: str | None = None, resumed: str | None = None) -> None:
    """Train a network for 50 steps; write losses, weights and checkpoints to the folder."""
    model, names, batch = NETS[name]()
    os.makedirs(folder, exist_ok=True)
    if given is None:
        artifacts.generate_artifacts(
            model, artifact_directory=folder, additional_output_names=[model.graph.output[0].name],
            **names,
        )  # fmt: skip
    files = os.path.join(given or folder, "")
    state = CheckpointState.load_checkpoint(resumed or files + "checkpoint")
    module = Module(files + "training_model.onnx", state, files + "eval_model.onnx")
    optimizer = Optimizer(files + "optimizer_model.onnx", module)
    scheduler = LinearLRScheduler(optimizer, 5, 2 * STEPS, 0.05 if name == "convnet" else 0.01)
    rng, losses, rates = np.random.default_rng(3), [], []
    for _ in range(2 * HALF if resumed else 0):
        batch(rng)
    for step in range(HALF if resumed else 0, STEPS):
        for _ in range(2):  # gradients of two batches are accumulated
            loss, _ = module(*batch(rng))
            losses.append(loss)
        optimizer.step()
        scheduler.step()
        module.lazy_reset_grad()
        rates.append(optimizer.get_learning_rate())
        if step + 1 == HALF:
            state.properties["step"] = step + 1
            state.properties["note"] = "half"
            state.properties["rate"] = 0.1
            path = os.path.join(folder, "half")
            CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)
    results = {f"weights/{n}": p.data for n, p in state.parameters}
    module.eval()
    outputs = module(*batch(rng))
    module.export_model_for_inferencing(
        os.path.join(folder, "inference.onnx"), [model.graph.output[0].name]
    )
    np.savez_compressed(
        os.path.join(folder, "results.npz"), losses=np.array(losses), rates=np.array(rates),
        eval_loss=outputs[0], eval_output=outputs[1], **results,
    )  # fmt: skip


if __name__ == "__main__":
    train(*sys.argv[1:])
