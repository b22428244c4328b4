"""The signature of a loaded model: its inputs and outputs in the protocol's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sardonyx.base.records import frozen, replace
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.serve.protocol.datatypes import BY_ONNX, Array, Datatype
from sardonyx.serve.protocol.messages import InferRequest, RequestedOutput
from sardonyx.serve.refusals import BadRequest, ModelFailed

if TYPE_CHECKING:
    from sardonyx.ort.node_arg import NodeArg
    from sardonyx.session import InferenceSession


@frozen(eq=False)
class TensorSpec:
    """An input or output: its datatype and shape, with names or None for open sizes."""

    name: str
    datatype: Datatype
    shape: tuple[int | str | None, ...]

    def as_metadata(self) -> dict[str, object]:
        """Return the entry of the model's metadata; open sizes are -1."""
        return {"name": self.name, "datatype": self.datatype.name, "shape": self.sizes()}

    def sizes(self) -> list[int]:
        """Return the shape with -1 for open sizes."""
        return [dim if isinstance(dim, int) else -1 for dim in self.shape]


@frozen(eq=False)
class Signature:
    """The inputs and outputs of a model."""

    inputs: tuple[TensorSpec, ...]  # required ones first
    outputs: tuple[TensorSpec, ...]
    n_required: int

    def check(self, feed: Mapping[str, Array]) -> None:
        """Raise an error unless the model accepts these inputs."""
        known = {spec.name: spec for spec in self.inputs}
        for name in feed:
            if name not in known:
                raise BadRequest(f"the model has no input {name}; it has {', '.join(known)}")
        sizes: dict[str, tuple[int, str]] = {}
        for index, spec in enumerate(self.inputs):
            array = feed.get(spec.name)
            if array is not None:
                _check_tensor(spec, array, sizes)
            elif index < self.n_required:
                raise BadRequest(f"the input {spec.name} is missing")

    def requested(self, request: InferRequest) -> tuple[tuple[RequestedOutput, int], ...]:
        """Return the outputs that a request asks for, with their positions."""
        if not request.outputs:
            return tuple(
                (RequestedOutput(spec.name, request.is_binary), index)
                for index, spec in enumerate(self.outputs)
            )
        positions = {spec.name: index for index, spec in enumerate(self.outputs)}
        for output in request.outputs:
            if output.name not in positions:
                raise BadRequest(
                    f"the model has no output {output.name}; it has {', '.join(positions)}"
                )
        return tuple((output, positions[output.name]) for output in request.outputs)


def _check_tensor(spec: TensorSpec, array: Array, sizes: dict[str, tuple[int, str]]) -> None:
    if array.dtype != spec.datatype.dtype:
        raise BadRequest(
            f"the input {spec.name} has the datatype {spec.datatype.name}, not that of the request"
        )
    if len(array.shape) != len(spec.shape):
        raise BadRequest(
            f"the input {spec.name} must have {len(spec.shape)} dims, got {list(array.shape)}"
        )
    for dim, size in zip(spec.shape, array.shape, strict=True):
        if dim is None or dim == size:
            continue
        if isinstance(dim, int):
            raise BadRequest(
                f"the input {spec.name} must have the shape {spec.sizes()}, got {list(array.shape)}"
            )
        known, name = sizes.setdefault(dim, (size, spec.name))
        if known != size:
            raise BadRequest(f"{dim} is {known} in the input {name}, but {size} in {spec.name}")


def signature_of(session: InferenceSession) -> Signature:
    """Return the signature of a session, or raise an error for types without a datatype."""
    required = tuple(_spec(each, "input") for each in session.get_inputs())
    optional = tuple(_spec(each, "input") for each in session.get_overridable_initializers())
    # Exporters give the dims of outputs names of their own; inference knows which inputs they have.
    facts = [output.fact for output in session._compiled.program.outputs]
    outputs = tuple(
        _with_inferred(_spec(each, "output"), fact)
        for each, fact in zip(session.get_outputs(), facts, strict=True)
    )
    return Signature(required + optional, outputs, len(required))


def _with_inferred(spec: TensorSpec, fact: AnyFact) -> TensorSpec:
    if not isinstance(fact, Fact) or fact.shape is None or len(fact.shape) != len(spec.shape):
        return spec
    return replace(spec, shape=tuple(d if isinstance(d, int) else str(d) for d in fact.shape))


def _spec(arg: NodeArg, what: str) -> TensorSpec:
    datatype = BY_ONNX.get(arg.type)
    if datatype is None:
        hint = "; export the classifier with zipmap off" if arg.type.startswith("seq(map") else ""
        raise ModelFailed(f"the {what} {arg.name} is a {arg.type}, which has no datatype{hint}")
    return TensorSpec(arg.name, datatype, _dims(arg.shape))


def _dims(shape: Sequence[object]) -> tuple[int | str | None, ...]:
    return tuple(d if isinstance(d, (int, str)) or d is None else str(d) for d in shape)
