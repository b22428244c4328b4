"""ONNX's backend interface (onnx.backend.base); options as onnxruntime's backend allows them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

import sardonyx
from sardonyx.base.protobuf_wire import Message
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import by_numpy
from sardonyx.graph.fact import AnyFact, Fact, SequenceFact
from sardonyx.load import NEWEST, NEWEST_IR
from sardonyx.save.types import value_info

# Only options that neither write files nor change results: models and tests may be untrusted.
_SESSION_OPTIONS: Final = frozenset((
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode",
    "execution_order", "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads",
    "log_severity_level", "log_verbosity_level", "logid", "use_deterministic_compute",
    "use_per_session_threads",
))  # fmt: skip
_RUN_OPTIONS: Final = frozenset((
    "log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches",
))  # fmt: skip


class Prepared:
    """A model that is ready to run: the result of `Backend.prepare`."""

    def __init__(self, session: sardonyx.InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Return the outputs for inputs: a list in order, one value, or a dict by name."""
        names = [argument.name for argument in self._session.get_inputs()]
        if isinstance(inputs, Mapping) and not (self._takes_map() and names[0] not in inputs):
            feed = dict(inputs)
        elif isinstance(inputs, (list, tuple)):
            if len(inputs) > len(names):
                raise InvalidArgument(f"{len(inputs)} inputs for a model that has {len(names)}")
            # Trailing inputs that have defaults may be left out.
            feed = dict(zip(names, inputs, strict=False))
        elif len(names) == 1:
            feed = {names[0]: inputs}
        else:
            raise RuntimeError(f"the model has {len(names)} inputs: pass a list")
        options = sardonyx.RunOptions()
        _set_options(options, kwargs, _RUN_OPTIONS)
        return self._session.run(None, feed, options)

    def _takes_map(self) -> bool:
        """Return whether the only input is a map, which is passed as it is."""
        inputs = self._session.get_inputs()
        return len(inputs) == 1 and inputs[0].type.startswith("map(")


class Backend:
    """The interface of ONNX's backend tests and of programs that support several runtimes."""

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Return whether models can run on a device; the model is not examined."""
        return cls.supports_device(device or sardonyx.get_device())

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device is available: "CPU", and "CUDA" or "GPU" if there is one."""
        kind = device.partition(":")[0].upper()
        return ("GPU" if kind == "CUDA" else kind) in ("CPU", sardonyx.get_device())

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> Prepared:
        """Return a prepared model from a path, bytes, ModelProto, session or prepared model."""
        if isinstance(model, Prepared):
            return model
        if isinstance(model, sardonyx.InferenceSession):
            return Prepared(model)
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"there is no device {device!r}, only {sardonyx.get_device()!r}")
        options = sardonyx.SessionOptions()
        _set_options(options, kwargs, _SESSION_OPTIONS)
        return Prepared(sardonyx.InferenceSession(model, options, _providers(device)))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Sequence[Any],
        device: str | None = None,
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run one NodeProto as a model of its own.

        `opset_version` is that of the node's domain; the default is the newest.
        """
        version = kwargs.pop("opset_version", NEWEST.get(node.domain, 1))
        return cls.run_model(_one_node(node, inputs, version), list(inputs), device, **kwargs)


def _providers(device: str | None) -> list[Any]:
    """Return the providers for a device; None: all available ones."""
    if device is None:
        return sardonyx.get_available_providers()
    kind, _, number = device.upper().partition(":")
    cuda = [] if kind == "CPU" else [("CUDAExecutionProvider", {"device_id": number or "0"})]
    return [*cuda, "CPUExecutionProvider"]


def _set_options(options: Any, values: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Set the allowed options; names that the options do not have are ignored."""
    for name, value in values.items():
        if name in allowed:
            setattr(options, name, value)
        elif hasattr(options, name):
            raise RuntimeError(
                f"{type(options).__name__}.{name} is not permitted in a backend; "
                f"these can: {', '.join(sorted(allowed))}"
            )


def _one_node(node: Any, inputs: Sequence[Any], version: int) -> bytes:
    """Serialize a model of one node, whose inputs have the types and shapes of `inputs`."""
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(names) != len(inputs):
        raise InvalidArgument(f"{len(inputs)} values for {len(names)} inputs of {node.op_type}")
    # Field numbers of ModelProto, GraphProto and OperatorSetIdProto in onnx.proto.
    graph = Message()
    graph.blob(1, node.SerializeToString())
    graph.text(2, node.op_type)
    for name, value in zip(names, inputs, strict=True):
        graph.message(11, value_info(name, _fact(value)))
    for name in filter(None, node.output):
        graph.message(12, value_info(name, None))
    model, written = Message(), io.BytesIO()
    model.number(1, NEWEST_IR)
    model.message(7, graph)
    for domain, number in {**NEWEST, node.domain: version}.items():
        opset = Message()
        opset.text(1, domain)
        opset.number(2, number)
        model.message(8, opset)
    model.write(written)
    return written.getvalue()


def _fact(value: Any) -> AnyFact:
    """Return the type and shape of an array, or of a list of arrays of any shapes."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise InvalidArgument("the element type of an empty list is unknown")
        elem = _fact(value[0])
        return SequenceFact(elem.shaped(None) if isinstance(elem, Fact) else elem)
    array = np.asarray(value)
    dtype = by_numpy(array.dtype)
    if dtype is None:
        raise InvalidArgument(f"ONNX has no element type for {array.dtype}")
    return Fact(dtype, array.shape)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run = run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
