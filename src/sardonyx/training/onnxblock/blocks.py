"""Blocks: objects that append nodes to the base model when they are called."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sardonyx.training.onnxblock.base_model import edited_model
from sardonyx.training.onnxblock.graph_edit import (
    generate_graph_name,
    get_input_from_input_name,
    get_output_from_output_name,
    without_data,
)

MAX_CHECKED_BYTES: Final = 2**31 - 1  # of a model that protobuf serializes


class Block(ABC):
    """A part of a graph: `build` appends nodes to `self.base` and returns names of outputs."""

    base: onnx.ModelProto  # while `build` runs: the model that it edits

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        """Check onnxruntime's argument; models are checked in memory, and need no file."""
        if os.path.isabs(temp_file_name):
            raise RuntimeError(f"temp_file_name must be a relative path, got {temp_file_name}")

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Append nodes, and return the name of the output, or a tuple of names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the block and check the model."""
        self.base = edited_model()
        output = self.build(*args, **kwargs)
        if self.base.ByteSize() <= MAX_CHECKED_BYTES:
            onnx.checker.check_model(self.base, full_check=True)
        return output

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Return a copy of the base model with inferred types and shapes."""
        model = edited_model()
        inferred = onnx.shape_inference.infer_shapes(without_data(model))
        result = copy.deepcopy(model)
        del result.graph.value_info[:]
        result.graph.value_info.extend(inferred.graph.value_info)
        for output, known in zip(result.graph.output, inferred.graph.output, strict=True):
            output.CopyFrom(known)
        return result

    def _append(self, op: str, inputs: list[str], domain: str = "", **attributes: Any) -> str:
        """Append a node with one output, and return the name of that."""
        output = generate_graph_name(f"{op.lower()}_output")
        name = generate_graph_name(op)
        node = helper.make_node(op, inputs, [output], name, domain=domain, **attributes)
        self.base.graph.node.append(node)
        return output

    def _initializer(self, token: str, value: Any) -> str:
        """Append an initializer, and return its name; numbers that are no array are float32."""
        name = generate_graph_name(token)
        array = value if isinstance(value, np.ndarray) else np.array(value, np.float32)
        self.base.graph.initializer.append(numpy_helper.from_array(array, name))
        return name


class _BinaryOp(Block):
    """A node with two inputs."""

    op: str

    def build(self, input_name1: str, input_name2: str) -> str:
        return self._append(self.op, [input_name1, input_name2])


class Add(_BinaryOp):
    """The sum of two values."""

    op = "Add"


class Sub(_BinaryOp):
    """The difference of two values."""

    op = "Sub"


class Mul(_BinaryOp):
    """The product of two values."""

    op = "Mul"


class Div(_BinaryOp):
    """The quotient of two values."""

    op = "Div"


class _UnaryOp(Block):
    """A node with one input."""

    op: str

    def __init__(self, **attributes: Any) -> None:
        self._attributes = attributes

    def build(self, input_name: str) -> str:
        return self._append(self.op, [input_name], **self._attributes)


class _Reduction(_UnaryOp):
    """A reduction over all axes."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__(keepdims=int(keepdims))


class ReduceMean(_Reduction):
    """The mean of all elements."""

    op = "ReduceMean"


class ReduceSum(_Reduction):
    """The sum of all elements."""

    op = "ReduceSum"


class Sigmoid(_UnaryOp):
    """The logistic function."""

    op = "Sigmoid"


class Log(_UnaryOp):
    """The natural logarithm."""

    op = "Log"


class Neg(_UnaryOp):
    """The negated value."""

    op = "Neg"


class Abs(_UnaryOp):
    """The absolute value."""

    op = "Abs"


class Cast(_UnaryOp):
    """The value in another element type, a number of `onnx.TensorProto.DataType`."""

    op = "Cast"

    def __init__(self, to: int) -> None:
        super().__init__(to=to)


class Pow(Block):
    """A value raised to a constant power."""

    def __init__(self, exponent: float) -> None:
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        exponent = self._initializer("pow_exponent", [self._exponent])
        return self._append("Pow", [pow_input_name, exponent])


class Constant(Block):
    """A float as an initializer of shape [1]."""

    def __init__(self, value_float: float) -> None:
        self._value = value_float

    def build(self) -> str:
        return self._initializer("initializer", [self._value])


class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: str) -> str:
        return self._append("SequenceConstruct", list(sequence_input_names))


class ReduceAllL2(Block):
    """The Euclidean norm of all elements of some tensors, an op of com.microsoft."""

    def build(self, *reduce_node_input_names: str) -> str:
        output = self._append("ReduceAllL2", list(reduce_node_input_names), "com.microsoft")
        # Shape inference of the package onnx does not know the op.
        info = helper.make_tensor_value_info(output, TensorProto.FLOAT, [1])
        self.base.graph.value_info.append(info)
        return output


class Clip(Block):
    """A value limited to an interval; a bound that is None is absent."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        self._bounds = (("clip_min", clip_min), ("clip_max", clip_max))

    def build(self, clip_input_name: str) -> str:
        bounds = [
            "" if bound is None else self._initializer(token, bound)
            for token, bound in self._bounds
        ]
        return self._append("Clip", [clip_input_name, *bounds])


class PassThrough(Block):
    """No node at all: the outputs are the inputs."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        return input_names


class InputLike(Block):
    """A new graph input with the type and shape of an input or output."""

    def __init__(self, like: str) -> None:
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        try:
            found = get_input_from_input_name(self.base, self._like)
        except LookupError:
            found = get_output_from_output_name(self.base, self._like)
        info = copy.deepcopy(found)
        info.name = input_name or generate_graph_name("input")
        self.base.graph.input.append(info)
        return info.name


class LabelEncoder(Block):
    """A map from keys to values, by the op of ai.onnx.ml."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        **tables: Any,
    ) -> None:
        """`tables` are keys_* and values_* of floats, int64s and strings."""
        kinds = ("floats", "int64s", "strings")
        known = {f"{part}_{kind}" for part in ("keys", "values") for kind in kinds}
        if not tables.keys() <= known:
            raise TypeError(f"LabelEncoder has no argument {min(tables.keys() - known)!r}")
        self._attributes = {
            "default_float": default_float,
            "default_int64": default_int64,
            "default_string": default_string,
            **{name: values for name, values in tables.items() if values is not None},
        }

    def build(self, label_encoder_input_name: str) -> str:
        inputs = [label_encoder_input_name]
        return self._append("LabelEncoder", inputs, "ai.onnx.ml", **self._attributes)


class Linear(Block):
    """A fully connected layer with random weights of shape [in_features, out_features]."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        self._shape = (in_features, out_features)
        self._has_bias = bias
        self._factors: dict[str, Any] = {"alpha": alpha, "beta": beta}

    def build(self, linear_input_name: str) -> str:
        weight = np.random.randn(*self._shape).astype(np.float32)
        inputs = [linear_input_name, self._initializer("linear.weight", weight)]
        if self._has_bias:
            bias = np.random.randn(self._shape[1]).astype(np.float32)
            inputs.append(self._initializer("linear.bias", bias))
        return self._append("Gemm", inputs, **self._factors)
