"""Size limits of one request."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sardonyx.base.records import frozen
from sardonyx.serve.refusals import BadRequest, TooLarge


@frozen
class Limits:
    """Limits that hold before memory is allocated for what a request describes."""

    body_bytes: int = 64 << 20  # of a body, also after decompression
    json_bytes: int = 8 << 20  # of JSON, which is decoded between other requests
    tensors: int = 64  # inputs, and requested outputs
    rank: int = 8
    elements: int = 1 << 28  # of one tensor, and the largest dim
    name_length: int = 256

    def check_count(self, count: int, what: str) -> None:
        """Raise an error if a request lists too many tensors."""
        if count > self.tensors:
            raise TooLarge(f"the request has {count} {what}; at most {self.tensors} are accepted")

    def check_name(self, name: object) -> str:
        """Return a tensor's name, or raise an error."""
        if not isinstance(name, str) or not name:
            raise BadRequest("a tensor needs a name: its key `name` must be a string")
        if len(name) > self.name_length:
            raise TooLarge(
                f"a tensor's name may have {self.name_length} characters, got {len(name)}"
            )
        return name

    def check_shape(self, name: str, shape: Sequence[object]) -> tuple[int, ...]:
        """Return a shape of dims within the limits, or raise an error."""
        if len(shape) > self.rank:
            raise TooLarge(f"the shape of {name} has {len(shape)} dims; at most {self.rank} are")
        dims: list[int] = []
        for dim in shape:
            if type(dim) is not int or dim < 0:
                raise BadRequest(f"the shape of {name} must be a list of sizes, got {dim!r:.40}")
            if dim > self.elements:
                raise TooLarge(f"a dim of {name} is {dim}; at most {self.elements} is accepted")
            dims.append(dim)
        if prod(dims) > self.elements:
            raise TooLarge(
                f"{name} has {prod(dims)} elements; at most {self.elements} are accepted"
            )
        return tuple(dims)
