"""What a node is lowered to on the CPU: a kernel call, or a view of existing bytes."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Dim, Shape, Size
from sardonyx.graph.graph import Value


@frozen
class Packed:
    """A constant in a packed layout, which a packing kernel produces once per session start."""

    value: Value
    kernel: str  # the packing kernel: one input, one output of bytes
    size_bytes: int
    ints: tuple[int, ...] = ()


@frozen
class Stored:
    """A constant's bytes as stored in its file: not copied, perhaps unaligned.

    Types narrower than a byte are passed as packed bytes, others in their type and shape.
    """

    value: Value


@frozen
class Call:
    """A kernel call with its operands; the outputs are those of the node."""

    kernel: str
    inputs: tuple[Value | Packed | Stored | None, ...]
    ints: tuple[Size, ...] = ()  # attributes; symbolic sizes are evaluated when dims are bound
    floats: tuple[float, ...] = ()
    grows: tuple[tuple[int, int, int], ...] = ()  # (input, output, axis): a KV cache
    # (input, output) pairs that may alias (in-place), if their sizes are equal: the kernel reads
    # no byte of the input after it has written to that offset.
    shares: tuple[tuple[int, int], ...] = ()
    permutation: tuple[int, ...] = ()  # from axes of aliasing inputs to output axes; (): identity
    is_concat: bool = False  # a Concat along ints[0]: producers may write into the output directly
    # (input, output): the kernel writes the output over the input, which the caller owns.
    updates: tuple[tuple[int, int], ...] = ()
    writes_rows: bool = False  # output 0 may have a row stride: a slice of a Concat's output


@frozen
class Reshaped:
    """A view in the shape of the node's output; the value must be contiguous."""

    value: Value


@frozen
class Permuted:
    """A view with permuted axes."""

    value: Value
    perm: tuple[int, ...]


@frozen
class Sliced:
    """A strided view: from `starts`, every `steps`-th element, as many as the output has.

    A node with several outputs (Split) has one tuple of starts for each.
    """

    value: Value
    starts: tuple[Shape, ...]  # by output
    steps: tuple[int, ...]


@frozen
class Expanded:
    """A broadcast view: stride 0 along axes of one element and along new leading axes."""

    value: Value


@frozen
class Zipped:
    """A model output that is a tensor up to here and is returned as dicts with these keys."""

    value: Value
    keys: tuple[int | str, ...]


@frozen
class Bodies:
    """Control flow; it runs natively if all of its bodies do."""


Lowered = Call | Reshaped | Permuted | Sliced | Expanded | Zipped | Bodies


def argument_sizes(lowered: Lowered) -> Iterator[Dim]:
    """Yield the symbolic sizes among the arguments, other than those in the outputs' shapes."""
    if isinstance(lowered, Call):
        yield from (d for d in lowered.ints if isinstance(d, Dim))
    elif isinstance(lowered, Sliced):
        yield from (d for starts in lowered.starts for d in starts if isinstance(d, Dim))
