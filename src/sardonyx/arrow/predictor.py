"""Batch scoring of Arrow tables by a model."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from sardonyx.arrow import read, write
from sardonyx.arrow.batch_rows import BatchRows
from sardonyx.arrow.columns import Columns, Feed, assign, read_input
from sardonyx.arrow.node_packs import open_session
from sardonyx.base.locks import Lock
from sardonyx.base.log import Logger
from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    from sardonyx.ort.node_arg import NodeArg
    from sardonyx.session.inference import InferenceSession

Nulls = Literal["error", "nan", "null"]
_EMPTY: Final[Mapping[str, Any]] = {}
_LOG: Final = Logger()
_UNPICKLED: Final[dict[str, Predictor]] = {}  # by token
_UNPICKLED_LOCK: Final = Lock()
_MAX_UNPICKLED: Final = 8  # models that a worker keeps open


@frozen
class Scoring:
    """How a table is scored.

    `columns` names the column of an input, or those that are stacked to its rows. `outputs` are the
    outputs that become columns, all by default; a mapping also renames them. `keep` are the columns
    of the table that stay in front of them. `nulls` says what a null in a column means: an error,
    NaN for inputs of floats, or null in all outputs of the row. `padding` is the value that shorter
    lists of an input are padded with. `constants` are fed as they are, in every run. `batch_rows`
    is the number of rows of a run, tuned by default. `lists` makes every row of several elements a
    list, as Spark reads them.
    """

    columns: Columns = _EMPTY
    outputs: Sequence[str] | Mapping[str, str] | None = None
    keep: Sequence[str] | bool = True
    nulls: Nulls = "error"
    padding: read.Padding = _EMPTY
    constants: Mapping[str, Any] = _EMPTY
    batch_rows: int | None = None
    lists: bool = False


@frozen
class _Plan:
    """The columns that are read and written for tables of one schema."""

    feeds: list[Feed]
    outputs: list[NodeArg]
    kinds: list[pa.DataType | None]  # of the outputs' columns
    names: list[str]  # of the outputs' columns
    kept: list[str]

    @property
    def columns(self) -> list[str]:
        """All columns that are read, each once."""
        return list(dict.fromkeys(name for feed in self.feeds for name in feed.names))


class Predictor:
    """A model and how it scores. Thread-safe; pickled without its session.

    `model` is a path, which workers on other machines must be able to open, or the bytes of a
    model. `threads` are those of a run. `pack_cache` is a folder of each machine through which the
    processes of that machine share packed weights. A process that gets the same Predictor several
    times, with each of its tasks, makes one session.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        scoring: Scoring | None = None,
        *,
        threads: int | Callable[[], int] = 0,
        pack_cache: str | None = None,
    ) -> None:
        self._model = model if isinstance(model, bytes) else os.path.abspath(model)
        self._scoring = scoring or Scoring()
        self._threads, self._pack_cache = threads, pack_cache
        self._token = uuid.uuid4().hex
        self._check()
        self._lock = Lock()  # while the session is made
        self._session: InferenceSession | None = None
        self._fixed_rows: int | None = None
        self._rows = BatchRows()

    def _check(self) -> None:
        """Raise if an option is invalid for every table."""
        given = self._scoring
        if given.nulls not in ("error", "nan", "null"):
            raise InvalidArgument(f"nulls is {given.nulls!r}", hint='use "error", "nan" or "null"')
        if given.batch_rows is not None and given.batch_rows < 1:
            raise InvalidArgument(f"batch_rows is {given.batch_rows}, and must be positive")

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._model, self._scoring, self._threads, self._pack_cache)
        return _unpickled, (self._token, *state)

    def __repr__(self) -> str:
        model = self._model if isinstance(self._model, str) else f"{len(self._model)} bytes"
        return f"Predictor({model!r})"

    @property
    def session(self) -> InferenceSession:
        """The session, created on first use."""
        with self._lock:
            if self._session is None:
                threads = self._threads() if callable(self._threads) else self._threads
                session = open_session(self._model, threads, self._pack_cache)
                self._fixed_rows = _fixed_rows(session)
                self._rows = BatchRows(self._fixed_rows or self._scoring.batch_rows)
                self._session = session
        return self._session

    def schema(self, table: pa.Schema) -> pa.Schema:
        """Return the schema of the result for tables of this schema; raise if it does not fit."""
        plan = self._plan(table)
        fields = [table.field(name) for name in plan.kept]
        for output, name, kind in zip(plan.outputs, plan.names, plan.kinds, strict=True):
            if kind is None:
                raise InvalidArgument(
                    f"the model does not say what rank output {output.name} has",
                    hint="choose other outputs, or infer its shapes and save it again",
                )
            fields.append(pa.field(name, kind))
        return pa.schema(fields)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the columns that are kept and those of the outputs, row by row."""
        plan = self._plan(table.schema)
        parts = self._scored(table, plan)
        columns = [table.column(name) for name in plan.kept]
        for index, kind in enumerate(plan.kinds):
            chunks = [part[index] for part in parts]
            kind = chunks[0].type if chunks and kind is None else kind
            columns.append(pa.chunked_array(chunks, kind or pa.null()))
        return pa.table(columns, names=[*plan.kept, *plan.names])

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Score record batches one after the other, as Spark's mapInArrow hands them out."""
        for batch in batches:
            yield from self(pa.Table.from_batches([batch])).combine_chunks().to_batches()

    def _plan(self, schema: pa.Schema) -> _Plan:
        args, chosen = self.session.get_inputs(), self._scoring.outputs
        constants = self._scoring.constants
        _check_names("constants", constants, [arg.name for arg in args], "an input of the model")
        inputs = [read_input(arg) for arg in args if arg.name not in constants]
        found = {output.name: output for output in self.session.get_outputs()}
        _check_names("outputs", chosen or (), found, "an output of the model")
        outputs = [found[name] for name in (found if chosen is None else chosen)]
        kinds = [write.column_type(o, is_nested=self._scoring.lists) for o in outputs]
        renamed = chosen if isinstance(chosen, Mapping) else {}
        names = [renamed.get(output.name, output.name) for output in outputs]
        keep = self._scoring.keep
        kept = list(schema.names if keep is True else keep or ())
        _check_names("keep", kept, schema.names, "a column of the table")
        for name in names:
            if name in kept:
                raise InvalidArgument(
                    f"an output and a column that is kept are named {name}",
                    hint=f"rename the output, outputs={{{name!r}: ...}}, or choose what to keep",
                )
        feeds = assign(inputs, schema, self._scoring.columns)
        return _Plan(feeds, outputs, kinds, names, kept)

    def _scored(self, table: pa.Table, plan: _Plan) -> list[list[pa.Array]]:
        """Return the outputs' columns for one part of the rows after the other."""
        table = read.plain(table, plan.columns)
        for feed in plan.feeds:
            read.check_lengths(feed, table, self._scoring.padding)
        nulls = read.null_rows([table.column(name) for name in plan.columns])
        if nulls is None:
            return list(self._runs(table, plan))
        if self._scoring.nulls != "null":
            self._check_nulls(table, plan)
            return list(self._runs(table, plan))
        _LOG.warning("%s of %s rows have a null and are not scored", nulls.sum(), len(nulls))
        parts = list(self._runs(table.filter(pa.array(~nulls)), plan))
        if not parts:
            return [[pa.nulls(len(nulls), kind or pa.null()) for kind in plan.kinds]]
        rows = pa.array(np.cumsum(~nulls) - 1, pa.int64(), mask=nulls)
        return [[_taken(pa.concat_arrays(column), rows) for column in zip(*parts, strict=True)]]

    def _check_nulls(self, table: pa.Table, plan: _Plan) -> None:
        """Raise unless every null may be fed as NaN."""
        for feed in plan.feeds:
            for name in feed.names:
                mask = read.null_rows([table.column(name)])
                is_nan = self._scoring.nulls == "nan" and feed.input.dtype.is_float
                column = table.column(name)
                if mask is None or (is_nan and not read.has_null_list(column.type, column)):
                    continue
                raise InvalidArgument(
                    f"column {name} has {int(mask.sum())} nulls, the first in row "
                    f"{int(mask.argmax())}",
                    input=feed.input.name,
                    hint='nulls="null" leaves such rows out, and nulls="nan" feeds NaN to inputs '
                    "of floats, but not for whole lists",
                )

    def _runs(self, table: pa.Table, plan: _Plan) -> Iterator[list[pa.Array]]:
        """Yield the outputs' columns of one run after the other."""
        begin = 0
        while begin < table.num_rows:
            rows = table.slice(begin, self._rows.rows)
            yield self._run(rows, plan)
            begin += rows.num_rows

    def _run(self, rows: pa.Table, plan: _Plan) -> list[pa.Array]:
        begin = time.perf_counter()
        feed = {f.input.name: read.read_feed(f, rows, self._scoring.padding) for f in plan.feeds}
        if self._fixed_rows is not None:
            feed = {name: _filled_up(array, self._fixed_rows) for name, array in feed.items()}
        values = self.session.run(
            [output.name for output in plan.outputs], {**feed, **self._scoring.constants}
        )
        if self._fixed_rows is not None:
            values = [value[: rows.num_rows] for value in values]
        columns = [
            write.column(output, kind, value, rows.num_rows)
            for output, kind, value in zip(plan.outputs, plan.kinds, values, strict=True)
        ]
        size_bytes = sum(each.nbytes for each in (*columns, *feed.values()))
        self._rows.observe(rows.num_rows, time.perf_counter() - begin, size_bytes)
        return columns


def predict(
    table: pa.Table | pa.RecordBatch,
    model: str | os.PathLike[str] | bytes | Predictor,
    **scoring: Any,
) -> pa.Table:
    """Return a table with the outputs of a model for each row. Arguments are those of `Scoring`."""
    predictor = model if isinstance(model, Predictor) else Predictor(model, Scoring(**scoring))
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    return predictor(table)


def _unpickled(
    token: str,
    model: str | bytes,
    scoring: Scoring,
    threads: int | Callable[[], int],
    pack_cache: str | None,
) -> Predictor:
    """Return this process's copy of a Predictor: the one that was unpickled before, if any."""
    with _UNPICKLED_LOCK:
        found = _UNPICKLED.pop(token, None)
        if found is None:
            found = Predictor(model, scoring, threads=threads, pack_cache=pack_cache)
            found._token = token
        _UNPICKLED[token] = found  # the newest is the last
        while len(_UNPICKLED) > _MAX_UNPICKLED:
            del _UNPICKLED[next(iter(_UNPICKLED))]
        return found


def _fixed_rows(session: InferenceSession) -> int | None:
    """Return the number of rows of a run for models that declare one."""
    sizes = {arg.shape[0] for arg in session.get_inputs() if arg.shape}
    fixed = {size for size in sizes if isinstance(size, int)}
    return fixed.pop() if len(fixed) == 1 and len(sizes) == 1 else None


def _check_names(what: str, names: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raise for the first unknown name."""
    listed = list(known)
    for name in names:
        if name not in listed:
            raise InvalidArgument(
                f"{what} has {name}, which is not {kind}", known=", ".join(listed)
            )


def _taken(column: pa.Array, rows: pa.Array) -> pa.Array:
    """Return the elements of a column at these rows; null for a row that is null."""
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return column.take(rows)
    return pa.ExtensionArray.from_storage(column.type, column.storage.take(rows))


def _filled_up(array: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    """Return the array with its last row repeated, for a model with a fixed number of rows."""
    missing = rows - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
