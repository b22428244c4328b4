"""What a node becomes on the CPU: a call of a kernel row, or another view of some bytes."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Dim, Shape, Size
from sardonyx.graph.graph import Value


@frozen
class Packed:
    """A constant in the form that another row packs it into, made once when a session starts."""

    value: Value
    row: str  # the kernel row that packs: one input, one output of bytes
    size_bytes: int
    ints: tuple[int, ...] = ()


@frozen
class Stored:
    """A constant's bytes as they lie in its file: not copied, perhaps unaligned.

    Types narrower than a byte come as packed bytes, all others in their type and shape.
    """

    value: Value


@frozen
class Call:
    """A kernel row with its operands; the outputs are those of the node."""

    row: str
    inputs: tuple[Value | Packed | Stored | None, ...]
    ints: tuple[Size, ...] = ()  # numbers, or sizes that are known when dims are bound
    floats: tuple[float, ...] = ()
    grows: tuple[tuple[int, int, int], ...] = ()  # (input, output, axis): the input with more rows
    # (input, output) that may be the same bytes, if they have the same size: nothing of the input
    # is read after something is written where it lies.
    shares: tuple[tuple[int, int], ...] = ()
    turn: tuple[int, ...] = ()  # axes of inputs that share, in the output's order; empty: as is
    joins: bool = False  # the inputs lie one behind the other along axis ints[0] of the output
    writes_rows: bool = False  # the rows of output 0 may lie apart, as parts of longer ones


@frozen
class Reshaped:
    """The bytes of a value in the shape of the node's output. Wants them without gaps."""

    value: Value


@frozen
class Permuted:
    """A value with its axes in another order."""

    value: Value
    perm: tuple[int, ...]


@frozen
class Sliced:
    """Part of a value: from `starts`, every `steps`-th element, as many as each output has.

    A node with several outputs (Split) gives one tuple of starts for each.
    """

    value: Value
    starts: tuple[Shape, ...]  # by output
    steps: tuple[int, ...]


@frozen
class Expanded:
    """A value repeated along axes where it has one element, or which it lacks in front."""

    value: Value


@frozen
class Zipped:
    """Rows of numbers that leave the program as dicts with these keys: an output of the model."""

    value: Value
    keys: tuple[int | str, ...]


@frozen
class Bodies:
    """Control flow, which is native where all of its bodies are."""


Lowered = Call | Reshaped | Permuted | Sliced | Expanded | Zipped | Bodies


def told_sizes(lowered: Lowered) -> Iterator[Dim]:
    """Sizes that native code is told beside those of the outputs."""
    if isinstance(lowered, Call):
        yield from (d for d in lowered.ints if isinstance(d, Dim))
    elif isinstance(lowered, Sliced):
        yield from (d for starts in lowered.starts for d in starts if isinstance(d, Dim))
