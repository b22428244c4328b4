"""Assignment of table columns to model inputs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import DType, by_ort_name

if TYPE_CHECKING:
    from sardonyx.ort.node_arg import NodeArg

Columns = Mapping[str, str | Sequence[str]]  # columns by input: one, or several that are stacked


@frozen
class TableInput:
    """An input of a model that has one row per row of the table."""

    name: str
    dtype: DType
    shape: tuple[int | None, ...]  # with the rows; empty: unknown

    @property
    def n_features(self) -> int | None:
        """How many numbers a row has, for matrices of known width."""
        return self.shape[1] if len(self.shape) == 2 else None


@frozen
class Feed:
    """The columns of an input. Several are stacked: a row of the input has one element of each."""

    input: TableInput
    names: tuple[str, ...]
    is_joined: bool


def read_input(arg: NodeArg) -> TableInput:
    """Return the input of a session; raise if no column can feed it."""
    element = arg.type.removeprefix("tensor(").removesuffix(")")
    dtype = by_ort_name(element) if arg.type.startswith("tensor(") else None
    if dtype is None:
        raise InvalidArgument(
            f"input {arg.name} is a {arg.type}, which columns cannot feed",
            hint="pass its value in constants",
        )
    shape = tuple(size if isinstance(size, int) else None for size in arg.shape)
    return TableInput(arg.name, dtype, shape)


def assign(inputs: Sequence[TableInput], schema: pa.Schema, columns: Columns) -> list[Feed]:
    """Return the columns of each input: those that were chosen, or else the column of its name.

    The only input of a model may instead be all columns, stacked, if it has that many features.
    """
    unknown = set(columns) - {each.name for each in inputs}
    if unknown:
        name = min(unknown)
        raise InvalidArgument(
            f"columns has {name}, which is not an input of the model",
            inputs=", ".join(each.name for each in inputs),
        )
    return [_feed(each, inputs, schema, columns.get(each.name)) for each in inputs]


def _feed(
    given: TableInput,
    inputs: Sequence[TableInput],
    schema: pa.Schema,
    chosen: str | Sequence[str] | None,
) -> Feed:
    if isinstance(chosen, str):
        chosen, is_joined = (chosen,), False
    elif chosen is not None:
        chosen, is_joined = tuple(chosen), True
    elif given.name in schema.names:
        chosen, is_joined = (given.name,), False
    elif len(inputs) == 1 and given.n_features == len(schema.names):
        chosen, is_joined = tuple(schema.names), True
    else:
        raise InvalidArgument(
            f"the table has no column for the input {given.name}",
            columns=", ".join(schema.names),
            hint=f"pass columns={{{given.name!r}: [...]}} with the names of its columns",
        )
    for name in chosen:
        _check_name(name, schema)
    if is_joined and given.n_features not in (None, len(chosen)):
        raise InvalidArgument(
            f"input {given.name} has {given.n_features} features, and {len(chosen)} columns are "
            "chosen for it"
        )
    return Feed(given, chosen, is_joined)


def _check_name(name: str, schema: pa.Schema) -> None:
    count = schema.names.count(name)
    if count > 1:
        raise InvalidArgument(
            f"the table has {count} columns named {name}", hint="give them names of their own"
        )
    if count == 0:
        near = difflib.get_close_matches(name, schema.names, 1)
        listed = f"did you mean {near[0]}?" if near else f"it has {', '.join(schema.names)}"
        raise InvalidArgument(f"the table has no column {name}", hint=listed)
